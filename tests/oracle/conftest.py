"""Needs verl, which `make test-oracle` installs into an environment of its own."""

import importlib.util

import torch

torch.set_num_threads(1)

if importlib.util.find_spec("verl") is None:
    collect_ignore_glob = ["test_*.py"]
