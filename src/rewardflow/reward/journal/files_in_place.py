"""Notices that a journal's files were deleted, replaced or cut short while a run has them open.

Always true: the journal itself is never opened here, because closing it again would drop this process's locks on it;
SQLite locks no WAL.

SQLite goes on writing to a file that was deleted, and every commit succeeds, but nobody will ever find the rows. The
inodes tell. A journal that became shorter was overwritten in its place, unless SQLite itself made it shorter: after a
VACUUM by another program, or by one that was killed before this run, the next merge of the WAL cuts the file to the
pages that it has. A WAL becomes shorter when another run merges it, but then begins anew with another header: one that
has no header, or is shorter under the same header, was overwritten, and what it held is lost. On network file systems,
where inodes may change by themselves and sizes come late, only a missing file is noticed.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from rewardflow.reward.journal.database import is_on_network
from rewardflow.reward.journal.wal_frames import HEADER_BYTES, is_header

_Inode = tuple[int, int]
_UNKNOWN: _Inode = (0, 0)
_UNKNOWN_BYTES = -1
_NUM_LOOKS = 3
_BETWEEN_LOOKS_S = 0.001


class FilesInPlace:
    """Remembers the files of a journal that was just opened."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path.absolute()  # the process may go to another folder
        real = path.resolve()  # SQLite has the WAL beside the file that a link names
        self._wal = real.with_name(f"{real.name}-wal")
        self._connection = connection
        self.is_wal_lost = False  # it was overwritten, so merging it would break the journal
        self._compares = not is_on_network(path)
        self._inodes: dict[Path, _Inode] = {}
        self._num_bytes = 0  # of the journal after the last commit
        self._wal_file: int | None = None
        self._wal_header = b""  # before the last commit
        self._num_wal_bytes = 0  # after the last commit under this header
        self.remember()

    def remember(self) -> None:
        """Notes files that exist by now, and how long the journal is: SQLite makes the WAL with the first commit."""
        for path in (self.path, self._wal):
            if (found := _look_at(path)) is None:
                continue
            inode, num_bytes = found
            self._inodes.setdefault(path, inode)
            if path == self.path:
                self._num_bytes = num_bytes
            else:
                self._num_wal_bytes = num_bytes
                if self._wal_file is None and self._compares:
                    self._wal_file = _opened(path, inode)

    def close(self) -> None:
        if self._wal_file is not None:
            os.close(self._wal_file)
        self._wal_file = None

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
            if path == self.path and num_bytes < self._num_bytes and not self._is_whole(num_bytes):
                return f"{path} was overwritten or cut short while this run used it"
        if self._wal_file is not None and not self._is_wal_whole(self._wal_file):
            self.is_wal_lost = True
            return f"{self._wal} was overwritten or cut short while this run used it"
        return None

    def _is_wal_whole(self, wal_file: int) -> bool:
        # Before the header is read: a WAL that begins anew in between is then no problem.
        num_bytes = os.fstat(wal_file).st_size
        header = _header_in(wal_file)
        if header != self._wal_header:
            self._wal_header, self._num_wal_bytes = header, 0
        if len(header) < HEADER_BYTES:  # another run merged the WAL
            return True
        return is_header(header) and num_bytes >= self._num_wal_bytes

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


def _opened(path: Path, inode: _Inode) -> int | None:
    """Opens a file if it is the one with this inode."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    stat = os.fstat(file)
    if (stat.st_dev, stat.st_ino) == inode:
        return file
    os.close(file)
    return None


def _header_in(wal_file: int) -> bytes:
    """Reads the header of a WAL, again if another process may just be writing it."""
    header = os.pread(wal_file, HEADER_BYTES, 0)
    for _ in range(_NUM_LOOKS - 1):
        if len(header) < HEADER_BYTES or is_header(header):
            break
        time.sleep(_BETWEEN_LOOKS_S)
        header = os.pread(wal_file, HEADER_BYTES, 0)
    return header
