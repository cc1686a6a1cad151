"""Needs megatron-core, which `make test-megatron` installs into an environment of its own."""

import sys
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "train")]
torch.set_num_threads(1)
