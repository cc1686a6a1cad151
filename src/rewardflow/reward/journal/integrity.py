"""Checks a journal: which of its rows changed on disk or cannot be read, and what SQLite says about its pages.

Always true: checking changes nothing, and every row counts as sound or as broken. A row of an earlier version has no
checksums; it counts as sound if its documents can be read.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rewardflow.reward.journal.database import (
    LOCK_TIMEOUT_S,
    open_for_reading,
    schema_problems,
    text_of,
    translated_errors,
)
from rewardflow.reward.journal.reservations import reservation_problems
from rewardflow.reward.journal.row_scan import scan

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

    @property
    def is_sound(self) -> bool:
        return not (self.broken or self.page_problems or self.reservation_problems)


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
