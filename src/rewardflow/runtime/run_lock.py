"""Locks a run directory, so that one process at a time trains in it.

Always true: of two processes that start at once one is refused, before it has written anything; the lock ends with the
process, however that ends. Where the file system has no locks, the run continues without one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from rewardflow.errors import InvalidInput
from rewardflow.observe.process_lock import LockHeld, ProcessLock
from rewardflow.observe.run_directory import TRAINING_LOCK_FILE


@contextlib.contextmanager
def sole_use(run_dir: Path) -> Iterator[None]:
    """Holds the lock of a directory that has a run."""
    try:
        lock = ProcessLock.acquire(run_dir / TRAINING_LOCK_FILE)
    except LockHeld as held:
        raise InvalidInput(
            f"a run must be trained by one process at a time, got {run_dir}, which is in use by {held.holder}"
        ) from held
    with lock:
        yield


def refuse_if_in_use(run_dir: Path) -> None:
    """Raises early if the directory is locked: the run itself locks it after steps that cost time and money."""
    with sole_use(run_dir):
        pass
