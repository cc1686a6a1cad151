"""Notices that a journal's files were deleted, replaced or cut short while a run has them open.

Always true: `problem` never opens a file, because closing it again would drop this process's locks on it.

SQLite goes on writing to a file that was deleted, and every commit succeeds, but nobody will ever find the rows. The
inodes tell. The journal itself never shrinks under a run, because a vacuum needs it alone: a smaller file was
overwritten in its place. On network file systems, where inodes may change by themselves and sizes come late, only a
missing file is noticed.
"""

from __future__ import annotations

import os
from pathlib import Path

from rewardflow.reward.journal.database import is_on_network

_Inode = tuple[int, int]
_UNKNOWN: _Inode = (0, 0)
_UNKNOWN_BYTES = -1


class FilesInPlace:
    """Remembers the files of a journal that was just opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._paths = (path, path.with_name(f"{path.name}-wal"))
        self._compares = not is_on_network(path)
        self._inodes: dict[Path, _Inode] = {}
        self._num_bytes = 0  # the largest size of the journal so far; a `-wal` begins anew when it was merged
        self.remember()

    def remember(self) -> None:
        """Notes files that exist by now, and how long the journal is: SQLite makes the WAL with the first commit."""
        for path in self._paths:
            if (found := _look_at(path)) is None:
                continue
            inode, num_bytes = found
            self._inodes.setdefault(path, inode)
            if path == self._path:
                self._num_bytes = max(self._num_bytes, num_bytes)

    def problem(self) -> str | None:
        """Says what happened to the files, or returns None if they are in place."""
        for path, inode in self._inodes.items():
            found = _look_at(path)
            if found is None:
                return f"{path} was deleted or moved while this run used it"
            now, num_bytes = found
            if not self._compares or now == _UNKNOWN:
                continue
            if now != inode:
                return f"{path} was replaced by another file while this run used it"
            if path == self._path and num_bytes < self._num_bytes:
                return f"{path} was overwritten or cut short while this run used it"
        return None


def _look_at(path: Path) -> tuple[_Inode, int] | None:
    """Returns the inode and the size; None if the file is missing."""
    try:
        stat = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError:  # the folder cannot be read just now; the commit will tell
        return _UNKNOWN, _UNKNOWN_BYTES
    return (stat.st_dev, stat.st_ino), stat.st_size
