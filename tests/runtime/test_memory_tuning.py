"""Freed memory stays with the process, what lasts is left alone by the garbage collector.

In an interpreter of its own, because the settings are the process's.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
# Asks for 16 MiB, touches and frees them, again and again, as a step does with its activations.
CODE = """
import resource, sys
from rewardflow.runtime.memory_tuning import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
blocks = [bytearray(b"1") * (4 << 20) for _ in range(4)]
del blocks
before = faults()
for _ in range(10):
    blocks = [bytearray(b"1") * (4 << 20) for _ in range(4)]
    del blocks
sys.stdout.write(str(faults() - before))
"""


def faults(how: str) -> int:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", CODE, how]
    return int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told")
def test_memory_that_was_freed_is_used_again_without_page_faults() -> None:
    assert faults("kept") < 1000 < faults("given back")


LASTING = """
import gc, sys
from rewardflow.runtime.memory_tuning import without_what_lasts
gc.disable()
class Node:
    pass
dead = Node()
dead.itself = dead
del dead
alive = Node()
def seen():
    return any(one is alive for one in gc.get_objects())
with without_what_lasts():
    found = [one for one in gc.get_objects() if isinstance(one, Node)]
    inside, frozen, young = seen(), gc.get_freeze_count() > 0, Node()
    with without_what_lasts():
        pass
    still = gc.get_freeze_count() > 0
assert not inside and found == [] and frozen and still
assert seen() and gc.get_freeze_count() == 0
assert sum(isinstance(one, Node) for one in gc.get_objects()) == 2, "garbage was cleared away first"
"""


def test_what_lasts_is_left_alone_for_a_while_and_garbage_among_it_is_cleared_away_first() -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", LASTING], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
