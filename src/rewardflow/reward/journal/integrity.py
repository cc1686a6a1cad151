"""Checks a journal: which of its rows changed on disk or cannot be read, and what SQLite says about its pages.

Always true: checking changes nothing, and a broken page hides only its own rows. A row of an earlier version has no
checksums; it counts as sound if its documents can be read.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from rewardflow.reward.journal.database import LOCK_TIMEOUT_S, column_names, open_for_reading, translated_errors
from rewardflow.reward.journal.row_checksums import CHECKSUM_COLUMNS, row_checksums
from rewardflow.reward.journal.verdict_rows import COLUMNS, is_readable_verdict

MAX_PAGE_PROBLEMS: Final = 100
_IDS_AT_ONCE: Final = 500
_MIN_ROW_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class ScannedRow:
    """One row as it is on disk, texts as bytes: the values in the order of `COLUMNS`, or none if it is unreadable."""

    id: int
    values: tuple[Any, ...] = ()
    verdict_crc32: int | None = None
    rest_crc32: int | None = None
    error: str | None = None

    @property
    def has_sound_rest(self) -> bool:
        """Whether everything but the verdict is proven to be as it was written: the place and the cost."""
        return bool(self.values) and self.rest_crc32 is not None and row_checksums(self.values)[1] == self.rest_crc32

    def problem(self) -> str | None:
        """Says what is wrong with the row, or returns None."""
        if self.error is not None:
            return f"it cannot be read: {self.error}"
        verdict_crc32, rest_crc32 = row_checksums(self.values)
        if self.verdict_crc32 not in (None, verdict_crc32):
            return "its verdict does not match its checksum"
        if self.rest_crc32 not in (None, rest_crc32):
            return "its place, its cost or its rollout does not match its checksum"
        if not is_readable_verdict(self.values[-2]) or not _is_json(self.values[-1]):
            return "it holds no readable JSON"
        return None


@dataclass(frozen=True, slots=True)
class BrokenRow:
    id: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalCheck:
    """What a check found."""

    rows: int  # sound ones
    rows_without_checksum: int  # of the sound ones
    broken: tuple[BrokenRow, ...]
    page_problems: tuple[str, ...]  # in the words of SQLite

    @property
    def is_sound(self) -> bool:
        return not self.broken and not self.page_problems


def check_journal(path: str | os.PathLike[str], *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> JournalCheck:
    """Reads every row. Works while a run writes."""
    path = Path(path)
    num_sound = num_unchecked = 0
    broken: list[BrokenRow] = []
    with contextlib.closing(open_for_reading(path, lock_timeout_s)) as connection, translated_errors(path):
        for row in scan(connection):
            if (problem := row.problem()) is not None:
                broken.append(BrokenRow(row.id, problem))
            else:
                num_sound += 1
                num_unchecked += row.verdict_crc32 is None
        return JournalCheck(
            rows=num_sound,
            rows_without_checksum=num_unchecked,
            broken=tuple(broken),
            page_problems=tuple(_page_problems(connection)),
        )


def scan(connection: sqlite3.Connection) -> Iterator[ScannedRow]:
    """Yields all verdicts by id, also those that cannot be read."""
    checksums = CHECKSUM_COLUMNS if "rest_crc32" in column_names(connection) else "NULL, NULL"
    connection.text_factory = bytes  # broken text is no UTF-8
    query = f"SELECT id, {COLUMNS}, {checksums} FROM verdicts WHERE id BETWEEN ? AND ? ORDER BY id"
    last_id = _last_id(connection)
    for first_id in range(1, last_id + 1, _IDS_AT_ONCE):
        yield from _between(connection, query, first_id, min(last_id, first_id + _IDS_AT_ONCE - 1))


def _between(connection: sqlite3.Connection, query: str, first_id: int, last_id: int) -> Iterator[ScannedRow]:
    """Halves a range that cannot be read until only the broken ids are left."""
    try:
        rows = connection.execute(query, (first_id, last_id)).fetchall()
    except sqlite3.DatabaseError as error:
        if first_id == last_id:
            yield ScannedRow(first_id, error=str(error))
            return
        middle = (first_id + last_id) // 2
        yield from _between(connection, query, first_id, middle)
        yield from _between(connection, query, middle + 1, last_id)
        return
    for row_id, *values, verdict_crc32, rest_crc32 in rows:
        yield ScannedRow(row_id, tuple(values), verdict_crc32, rest_crc32)


def _last_id(connection: sqlite3.Connection) -> int:
    """Returns the largest id, from an index if the table's last page is broken; at worst a bound by the file's size."""
    for index in ("NOT INDEXED", "INDEXED BY verdicts_by_key", "INDEXED BY verdicts_by_run"):
        with contextlib.suppress(sqlite3.DatabaseError):
            (last_id,) = connection.execute(f"SELECT coalesce(max(id + 0), 0) FROM verdicts {index}").fetchone()
            return int(last_id)
    (num_pages,) = connection.execute("PRAGMA page_count").fetchone()
    (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    return int(num_pages * page_bytes // _MIN_ROW_BYTES)


def _page_problems(connection: sqlite3.Connection) -> Iterator[str]:
    try:
        for (text,) in connection.execute(f"PRAGMA integrity_check({MAX_PAGE_PROBLEMS})"):
            message = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
            if message != "ok":
                yield from message.splitlines()
    except sqlite3.DatabaseError as error:
        yield str(error)


def _is_json(document: Any) -> bool:
    try:
        orjson.loads(document)
    except ValueError:
        return False
    return True
