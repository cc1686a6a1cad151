"""Needs vLLM, which `make test-vllm` installs into an environment of its own.

Lets these tests import the helpers that stand beside this file. An engine takes half a minute to start, so a file has
one for all of its tests, on one loop.
"""

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)

# Read in this process and in vLLM's own: no network, no compilation of what runs a few times, one thread.
os.environ |= {"HF_HUB_OFFLINE": "1", "TORCH_COMPILE_DISABLE": "1", "OMP_NUM_THREADS": "1"}
