"""Locks a run directory, so that one process at a time trains in it.

Always true: of two processes that start at once one is refused, before it has written anything; the lock ends with the
process, however that ends. Where the file system has no locks, the run continues without one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from rewardflow.errors import InvalidInput
from rewardflow.observe.run_directory import RUN_FILE


@contextlib.contextmanager
def sole_use(run_dir: Path) -> Iterator[None]:
    """Holds the lock of a directory that has a run."""
    file = os.open(run_dir / RUN_FILE, os.O_RDWR | os.O_CLOEXEC)  # for writing: locks of NFS want it
    try:
        _lock(file, run_dir)
        yield
    finally:
        os.close(file)


def refuse_if_in_use(run_dir: Path) -> None:
    """Raises early if the directory is locked: the run itself locks it after steps that cost time and money."""
    with sole_use(run_dir):
        pass


def _lock(file: int, run_dir: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InvalidInput(f"a run must be trained by one process at a time, got {run_dir}, which is in use") from error
    except OSError:  # no locks there
        return
