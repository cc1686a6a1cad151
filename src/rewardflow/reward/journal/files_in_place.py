"""Notices that a journal's files were deleted or replaced while a run has them open.

Always true: `problem` never opens a file, because closing it again would drop this process's locks on it.

SQLite goes on writing to a file that was deleted, and every commit succeeds, but nobody will ever find the rows. The
inodes tell. On network file systems, where inodes may change by themselves, only a missing file is noticed.
"""

from __future__ import annotations

import os
from pathlib import Path

from rewardflow.reward.journal.database import is_on_network

_Inode = tuple[int, int]
_UNKNOWN: _Inode = (0, 0)


class FilesInPlace:
    """Remembers the files of a journal that was just opened."""

    def __init__(self, path: Path) -> None:
        self._paths = (path, path.with_name(f"{path.name}-wal"))
        self._compares_inodes = not is_on_network(path)
        self._inodes: dict[Path, _Inode] = {}
        self.remember()

    def remember(self) -> None:
        """Notes files that exist by now: SQLite makes the WAL with the first commit."""
        for path in self._paths:
            if path not in self._inodes and (inode := _inode_of(path)) is not None:
                self._inodes[path] = inode

    def problem(self) -> str | None:
        """Says what happened to the files, or returns None if they are in place."""
        for path, inode in self._inodes.items():
            now = _inode_of(path)
            if now is None:
                return f"{path} was deleted or moved while this run used it"
            if now not in (inode, _UNKNOWN) and self._compares_inodes:
                return f"{path} was replaced by another file while this run used it"
        return None


def _inode_of(path: Path) -> _Inode | None:
    try:
        stat = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError:  # the folder cannot be read just now; the commit will tell
        return _UNKNOWN
    return stat.st_dev, stat.st_ino
