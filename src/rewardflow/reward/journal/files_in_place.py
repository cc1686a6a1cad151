"""Notices that a journal's files were deleted, replaced or cut short while a run has them open.

Always true: `problem` never opens a file, because closing it again would drop this process's locks on it.

SQLite goes on writing to a file that was deleted, and every commit succeeds, but nobody will ever find the rows. The
inodes tell. A journal that became shorter was overwritten in its place, unless SQLite itself made it shorter: after a
VACUUM by another program, or by one that was killed before this run, the next merge of the WAL cuts the file to the
pages that it has. On network file systems, where inodes may change by themselves and sizes come late, only a missing
file is noticed.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from rewardflow.reward.journal.database import is_on_network

_Inode = tuple[int, int]
_UNKNOWN: _Inode = (0, 0)
_UNKNOWN_BYTES = -1


class FilesInPlace:
    """Remembers the files of a journal that was just opened."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path.absolute()  # the process may go to another folder
        real = path.resolve()  # SQLite has the WAL beside the file that a link names
        self._wal = real.with_name(f"{real.name}-wal")
        self._connection = connection
        self._compares = not is_on_network(path)
        self._inodes: dict[Path, _Inode] = {}
        self._num_bytes = 0  # of the journal after the last commit; a `-wal` begins anew when it was merged
        self.remember()

    def remember(self) -> None:
        """Notes files that exist by now, and how long the journal is: SQLite makes the WAL with the first commit."""
        for path in (self._path, self._wal):
            if (found := _look_at(path)) is None:
                continue
            inode, num_bytes = found
            self._inodes.setdefault(path, inode)
            if path == self._path:
                self._num_bytes = num_bytes

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
            if path == self._path and num_bytes < self._num_bytes and not self._is_whole(num_bytes):
                return f"{path} was overwritten or cut short while this run used it"
        return None

    def _is_whole(self, num_bytes: int) -> bool:
        """Whether the journal has room for the pages of the last commit in the WAL, which a file from outside lacks.

        After a VACUUM the journal lacks it too, if another run committed rows since: then this run ends for nothing.
        """
        wal = _look_at(self._wal)
        if wal is None or wal[1] <= 0:  # then SQLite counts the pages by the length of the file
            return False
        try:
            (num_pages,) = self._connection.execute("PRAGMA page_count").fetchone()
            (page_bytes,) = self._connection.execute("PRAGMA page_size").fetchone()
        except sqlite3.Error:
            return False
        return bool(num_bytes >= num_pages * page_bytes)


def _look_at(path: Path) -> tuple[_Inode, int] | None:
    """Returns the inode and the size; None if the file is missing."""
    try:
        stat = os.stat(path)
    except FileNotFoundError:
        return None
    except OSError:  # the folder cannot be read just now; the commit will tell
        return _UNKNOWN, _UNKNOWN_BYTES
    return (stat.st_dev, stat.st_ino), stat.st_size
