"""Checks a journal: which of its rows changed on disk or cannot be read, and what SQLite says about its pages.

Always true: checking changes nothing, and every row that SQLite shows counts as sound or as broken; what it drops of a
damaged WAL is named as such. A row of an earlier version has no checksums; it counts as sound if its documents can be
read.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rewardflow.errors import JournalError, JournalLocked
from rewardflow.reward.journal.database import (
    LOCK_TIMEOUT_S,
    open_for_reading,
    require_file,
    schema_problems,
    text_of,
    translated_errors,
)
from rewardflow.reward.journal.reservations import reservation_problems
from rewardflow.reward.journal.row_scan import scan
from rewardflow.reward.journal.wal_frames import find_damage

MAX_PAGE_PROBLEMS: Final = 100


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
    reservation_problems: tuple[str, ...] = ()  # rows of the table of money that changed on disk
    wal_problem: str | None = None  # why SQLite drops commits from the WAL, whose rows are not counted here

    @property
    def is_sound(self) -> bool:
        return not (self.broken or self.page_problems or self.reservation_problems or self.wal_problem)


def check_journal(path: str | os.PathLike[str], *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> JournalCheck:
    """Reads every row. Works while a run writes."""
    path = Path(path)
    require_file(path)
    damage = find_damage(path)
    try:
        found = _check_what_sqlite_shows(path, lock_timeout_s)
    except JournalLocked:
        raise
    except JournalError:
        if damage is None:
            raise
        # The first commits were among those that were dropped, and with them the schema.
        found = JournalCheck(rows=0, rows_without_checksum=0, broken=(), page_problems=())
    return found if damage is None else replace(found, wal_problem=str(damage))


def _check_what_sqlite_shows(path: Path, lock_timeout_s: float) -> JournalCheck:
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
            broken=tuple(sorted(broken, key=lambda row: row.id)),
            page_problems=tuple(_page_problems(connection)),
            reservation_problems=tuple(reservation_problems(connection)),
        )


def _page_problems(connection: sqlite3.Connection) -> Iterator[str]:
    yield from schema_problems(connection)
    try:
        for (text,) in connection.execute(f"PRAGMA integrity_check({MAX_PAGE_PROBLEMS})"):
            message = text_of(text)
            if message != "ok":
                yield from message.splitlines()
    except sqlite3.DatabaseError as error:
        yield str(error)
