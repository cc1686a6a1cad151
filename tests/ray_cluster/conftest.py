"""Needs Ray, which `make test-ray` installs into an environment of its own."""

import importlib.util

if importlib.util.find_spec("ray") is None:
    collect_ignore_glob = ["test_*.py"]
