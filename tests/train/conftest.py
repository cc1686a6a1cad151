"""Lets these tests import the helpers that stand beside this file; one thread, as the machine is shared."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)
