"""Processes of this machine, as the system tells of them."""

from __future__ import annotations

import os
import select
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


def all_ended(pids: list[int], within_s: float = 60.0) -> bool:
    return all(_ended(pid, within_s) for pid in pids)


def _ended(pid: int, within_s: float) -> bool:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        waiting = select.poll()
        waiting.register(handle, select.POLLIN)
        return bool(waiting.poll(within_s * 1000))
    finally:
        os.close(handle)
