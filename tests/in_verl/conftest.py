"""Runs of verl need verl, which `make test-verl` installs; they share one model and one file of prompts."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

if any(importlib.util.find_spec(name) is None for name in ("verl", "transfer_queue")):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def materials(tmp_path_factory: pytest.TempPathFactory) -> object:
    import verl_job

    return verl_job.make_materials(tmp_path_factory.mktemp("materials"))
