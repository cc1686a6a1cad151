"""Makes the pages of runs, and makes each again only after the run's files have changed.

Always true: a page is made on another thread, one at a time, so that many open browsers cost one page; making a page
takes at most a fifth of the time, however fast the run writes. Files are looked at when somebody asks for a page: while
nobody looks, nothing is read, and the network file systems of clusters would not tell of changes anyway.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from rewardflow.observe.run_directory import (
    AGENT_LOCK_FILE,
    AUDIT_FILE,
    DEVICES_FILE,
    EVENTS_FILE,
    JOURNAL_FILE,
    METRICS_FILE,
    REJUDGED_FOLDER,
    ROLLOUTS_FOLDER,
    RUN_FILE,
    STEPS_FILE,
    TRAINING_LOCK_FILE,
)
from rewardflow.report.run_data import is_in_use

_READ_FILES = (
    *(RUN_FILE, EVENTS_FILE, STEPS_FILE, METRICS_FILE, DEVICES_FILE, AUDIT_FILE, AGENT_LOCK_FILE, TRAINING_LOCK_FILE),
    *(JOURNAL_FILE, f"{JOURNAL_FILE}-wal", ROLLOUTS_FOLDER, REJUDGED_FOLDER),
)

_REST = 4.0  # times as long as making took, before it is made again

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Made(Generic[T]):
    tag: str  # of the files that it was made from
    value: T
    again_at_s: float  # not before, on the loop's clock


class PageCache(Generic[T]):
    """Keeps what was made last for up to `size` keys."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._made: OrderedDict[str, _Made[T]] = OrderedDict()
        self._one_at_a_time = asyncio.Lock()

    async def get(self, key: str, paths: Sequence[Path], make: Callable[[], T]) -> T:
        """Returns what was made from these directories as they are, or makes it now."""
        async with self._one_at_a_time:
            loop = asyncio.get_running_loop()
            known = self._made.get(key)
            if known is None or loop.time() >= known.again_at_s:
                tag = await asyncio.to_thread(tag_of, paths)
                if known is None or known.tag != tag:
                    began_s = loop.time()
                    value = await asyncio.to_thread(make)
                    known = _Made(tag, value, loop.time() + _REST * (loop.time() - began_s))
                    self._made[key] = known
            self._made.move_to_end(key)
            while len(self._made) > self._size:
                self._made.popitem(last=False)
            return known.value


def tag_of(paths: Sequence[Path]) -> str:
    """Returns a text that changes with the size or the time of any file that a report reads, and when a run dies."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(b"running" if is_in_use(path) else b"not running")
        for name in _READ_FILES:
            try:
                status = (path / name).stat()
            except OSError:
                digest.update(f"{path}\0{name}\0absent\n".encode(errors="surrogateescape"))
                continue
            seen = f"{path}\0{name}\0{status.st_ino} {status.st_size} {status.st_mtime_ns}\n"
            digest.update(seen.encode(errors="surrogateescape"))
    return digest.hexdigest()[:32]
