"""Processes of this machine, as the system tells of them."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable
from pathlib import Path


def descendants_of(pid: int) -> list[int]:
    """Of this moment, at any depth."""
    parents = {int(stat.parent.name): _parent_in(stat) for stat in Path("/proc").glob("[0-9]*/stat")}
    found, new = [], [pid]
    while new:
        new = [child for child, parent in parents.items() if parent in new]
        found += new
    return found


def _parent_in(stat: Path) -> int | None:
    try:
        return int(stat.read_text("utf-8", "replace").rpartition(")")[2].split()[1])
    except (ProcessLookupError, FileNotFoundError):  # it has ended meanwhile
        return None


def title_of(pid: int) -> str:
    """What it calls itself."""
    return Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace")


def wait_until_gone(pids: Iterable[int], patience_s: float = 60.0) -> list[int]:
    """Those that are not, when that much time has passed; one that nobody has asked about since it ended is gone."""
    deadline_s = time.monotonic() + patience_s
    return [pid for pid in pids if not _ends(pid, deadline_s)]


def _ends(pid: int, deadline_s: float) -> bool:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        waiting = select.poll()
        waiting.register(handle, select.POLLIN)
        return bool(waiting.poll(max(0.0, deadline_s - time.monotonic()) * 1000))
    finally:
        os.close(handle)
