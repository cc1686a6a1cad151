"""What every test starts from."""

import contextlib
import importlib.util
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from rewardflow.policy.cpu_instructions import avoid_undescribed_amx

# Lets every test import the helpers that stand beside this file.
sys.path.insert(0, str(Path(__file__).parent))

# Time limits per example measure the machine, not the code. In CI the same examples are tried every time, so that a
# failure belongs to the change that shows it; elsewhere new ones are.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

# asyncio's debug mode slows the loop several times and logs slow callbacks, which tests of logging would then see.
os.environ.pop("PYTHONASYNCIODEBUG", None)

# Worker processes get a width of 80, which commands under test would take for that of a terminal.
os.environ.pop("COLUMNS", None)

# Several processes share the cores; without this, torch would start a thread for every core in each of them.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Tests multiply in bfloat16 without a policy too, also in processes that they start.
avoid_undescribed_amx()

# A shell starts a job in the background (`nohup make test &`) with Ctrl-C ignored, and every child inherits that; tests
# that send SIGINT need the usual disposition. A handler becomes the default one in a child.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    with contextlib.suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, signal.default_int_handler)

# Files that take longest, begun first: a process that begins one of them last would finish it alone.
_SLOWEST_FIRST = (
    "test_quick_start.py",
    "cli/demo/test_command.py",
    "cli/train/test_command.py",
    "runtime/test_resume.py",
    "bench/test_schedules.py",
    "services/test_fault_mix.py",
    "train/fsdp2/test_sharding.py",
    "shared_agent/test_host.py",
    "runtime/test_critic_run.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    order = {here / name: place for place, name in enumerate(_SLOWEST_FIRST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


# Each needs a package that its make target installs into an environment of its own. No folder here has the name of a
# package: this one is on the path, so it would be taken for the package.
_NEEDED = {
    "local_judge": "xllamacpp",
    "browser": "playwright",
    "on_megatron": "megatron",
    "on_trl": "trl",
    "on_vllm": "vllm",
    "serve_outside": "schemathesis",
}
collect_ignore = [folder for folder, package in _NEEDED.items() if importlib.util.find_spec(package) is None]
if "REAL_SIZE" not in os.environ:  # minutes for each model; `make test-real-size` asks for them
    collect_ignore.append("real_size")
