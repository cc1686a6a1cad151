"""Locks a file so that one process at a time does something, and names the process that does it.

Always true: of several that ask at once, one gets the lock and all others are refused, also within one process; the
lock ends with its process, however that ends (with children that it forked, once they have ended too).

The lock is `flock` on a small file that holds the process id, the host and the time. The holder removes the file when
it is done; after a crash the file stays and the next one takes it over. NFS passes these locks on to its server, which
frees them some time after a machine died. Where a file system has no locks, everybody gets the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_MAX_HOLDER_BYTES = 4096
_MAX_TRIES = 1000


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The process that holds a lock, as it introduced itself."""

    process_id: int
    host: str
    since: str

    def __str__(self) -> str:
        return f"process {self.process_id} on {self.host}, since {self.since}"


class LockHeld(Exception):
    """Another process holds the lock, or another part of this one. Callers turn it into an error of their own."""

    def __init__(self, path: Path, holder: LockHolder | None) -> None:
        super().__init__(f"{path} is locked")
        self.holder = str(holder) if holder is not None else "another process"


class ProcessLock:
    """A lock that is held from `acquire` until `release`, or for a `with` block."""

    def __init__(self, path: Path, file: int) -> None:
        self.path = path
        self._file = file

    @classmethod
    def acquire(cls, path: Path) -> ProcessLock:
        """Takes the lock at once, or raises `LockHeld`; creates the file in a folder that exists."""
        for is_last in (*[False] * _MAX_TRIES, True):
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with contextlib.ExitStack() as undo:
                undo.callback(os.close, file)
                _lock(file, path)
                # The last holder may have removed the file after we had opened it. On some network file systems a file
                # never looks the same twice; there the lock counts as it is.
                if _is_same_file(file, path) or is_last:
                    _introduce(file)
                    undo.pop_all()
                    return cls(path, file)
        raise AssertionError("the last try returns or raises")

    def release(self) -> None:
        """Removes the file and frees the lock; releasing twice is fine."""
        if self._file < 0:
            return
        with contextlib.suppress(OSError):
            if _is_same_file(self._file, self.path):
                os.unlink(self.path)
        with contextlib.suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_UN)  # children that were forked have the file open too
        os.close(self._file)
        self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def refuse_if_held(path: Path) -> None:
    """Raises `LockHeld` if somebody holds the lock."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        _lock(file, path, fcntl.LOCK_SH)  # several may look at once
    finally:
        os.close(file)


def _lock(file: int, path: Path, kind: int = fcntl.LOCK_EX) -> None:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise LockHeld(path, _holder(file)) from error
    except OSError:  # the file system has no locks
        return


def _is_same_file(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def _introduce(file: int) -> None:
    """Writes who holds the lock. A full disk costs the name, not the lock."""
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    record = {"process_id": os.getpid(), "host": socket.gethostname(), "since": since}
    with contextlib.suppress(OSError):
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(record).encode(), 0)


def _holder(file: int) -> LockHolder | None:
    """Returns None if the holder has not written its name (yet)."""
    try:
        record = json.loads(os.pread(file, _MAX_HOLDER_BYTES, 0))
        return LockHolder(int(record["process_id"]), str(record["host"])[:255], str(record["since"])[:255])
    except (OSError, ValueError, TypeError, KeyError):
        return None
