"""Locks a run within a journal, so that one process at a time pays for it.

Always true: while a run is open, no other process and no other agent of this process opens the same run of the same
journal; other runs may. An agent that serves many runs has the journal alone. The lock ends with its process, and is
taken before the journal is opened.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from rewardflow.errors import JournalError, JournalLocked
from rewardflow.observe.process_lock import LockHeld, ProcessLock, refuse_if_held


def lock_run(path: Path, run: str | None) -> ProcessLock:
    """Takes the lock of a run, with `run=None` of all runs; raises `JournalLocked` with the name of the holder.

    Each takes its own lock before it looks at those of others. So of a run and an agent of all runs that open at the
    same moment, both may be refused, but never do both go on.
    """
    try:
        real = path.resolve()  # a link to the journal must not be a way round its locks
        _require_one_name(path, real)
        lock = ProcessLock.acquire(_lock_path(real, run))
    except LockHeld as held:
        raise _refusal(path, run, held) from held
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise JournalError(f"cannot lock the journal {path}: {getattr(error, 'strerror', None) or error}") from error
    try:
        for other in [_lock_path(real, None)] if run is not None else _locks_of_runs(real):
            refuse_if_held(other)
    except LockHeld as held:
        lock.release()
        raise _refusal(path, None, held) from held
    return lock


def _require_one_name(path: Path, real: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if real.is_file() and (num_names := real.stat().st_nlink) > 1:
            raise JournalError(
                f"a journal must have one name, because two names have two locks, got {path} with {num_names} hard "
                "links; make a copy of its own (`cp`), or remove the other names"
            )


def _lock_path(path: Path, run: str | None) -> Path:
    """Names the lock by a digest, because a run's name may be no file name."""
    suffix = "" if run is None else f"-{hashlib.blake2b(run.encode('utf-8', 'replace'), digest_size=8).hexdigest()}"
    return path.with_name(f"{path.name}-lock{suffix}")


def _locks_of_runs(path: Path) -> list[Path]:
    return [file for file in path.parent.iterdir() if file.name.startswith(f"{path.name}-lock-")]


def _refusal(path: Path, run: str | None, held: LockHeld) -> JournalLocked:
    if run is None:
        return JournalLocked(
            f"an agent of many runs must have its journal alone, got {path}, which is in use by {held.holder}"
        )
    return JournalLocked(
        f"a run must be used by one process at a time, got run {run!r} of {path}, which is in use by {held.holder}; "
        "wait until that ends, or name another run"
    )
