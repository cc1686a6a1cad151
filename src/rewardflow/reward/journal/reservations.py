"""Stores the money of a run that its verdicts do not show: reservations, uncertain costs, and costs without a verdict.

Always true: a run has at most one row per account, and the row holds everything that all its sessions have left. A row
that was written survives `kill -9`. While calls are in flight `uncertain_usd` covers them too, so that a session that
was killed has left an upper bound of what its calls may have cost; a clean end writes the exact sums. A changed row
is never believed: it is left out and counted as broken. Rows of earlier versions have no checksum and are believed.

An agent that serves several runs has rows of its own, which cover the calls of all runs. A run with a cap of its own
has rows beside them, under marked account names, which no sum over all runs contains.
"""

from __future__ import annotations

import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardflow.errors import JournalError
from rewardflow.reward.journal.database import text_of
from rewardflow.reward.journal.row_checksums import values_checksum
from rewardflow.reward.journal.verdict_rows import as_text
from rewardflow.types import EMPTY

_TABLE = """
CREATE TABLE IF NOT EXISTS reservations (
    run TEXT NOT NULL,
    account TEXT NOT NULL,
    at_s REAL NOT NULL,
    spent_usd REAL NOT NULL,
    uncertain_usd REAL NOT NULL,
    num_unpriced INTEGER NOT NULL,
    largest_usd REAL NOT NULL,
    crc32 INTEGER,
    PRIMARY KEY (run, account)
) WITHOUT ROWID
"""
_RUN_CAP = "\x1fcap of the run\x1f"  # before the account's name
_COLUMNS = "account, spent_usd, uncertain_usd, num_unpriced, largest_usd"


@dataclass(frozen=True, slots=True)
class Reservation:
    """One row: what the calls of one account have cost, or may have cost, beside the saved verdicts."""

    account: str
    spent_usd: float = 0.0  # known, but in no saved verdict: a hedge that lost, a call that was given up
    uncertain_usd: float = 0.0  # may have been spent
    num_unpriced: int = 0  # calls that may have been made while no cost was known
    largest_usd: float = 0.0  # the largest cost of one call so far


@dataclass(frozen=True, slots=True)
class StoredMoney:
    """What a journal held about money when it was opened."""

    before: tuple[Reservation, ...] = ()  # of the run
    spent_usd: float = 0.0  # the sums over all runs that count
    uncertain_usd: float = 0.0
    num_broken: int = 0  # rows that changed on disk, which the sums leave out
    of_run_caps: Mapping[str, tuple[Reservation, ...]] = EMPTY  # of runs with caps of their own

    def require_sound(self, path: Path) -> None:
        """Raises if any row is broken, because then nobody knows what is left of a cap."""
        if self.num_broken:
            raise JournalError(
                f"a journal must hold its money as it was written when there is a cap, got {self.num_broken} changed "
                f"rows in the table reservations of {path}; `rewardflow journal check {path}` names them"
            )


def create_reservations(connection: sqlite3.Connection) -> None:
    """Adds the table, or its checksums, to a journal that lacks them, as those of earlier versions do."""
    connection.execute(_TABLE)
    if not _has_checksums(connection):
        connection.execute("ALTER TABLE reservations ADD COLUMN crc32 INTEGER")


def read_reservations(connection: sqlite3.Connection, run: str, *, all_runs: bool) -> StoredMoney:
    """Returns the run's rows, and the sums of its money or of the money of all runs."""
    where, values = ("", ()) if all_runs else (" WHERE run = ?", (as_text(run),))
    rows = connection.execute(f"SELECT run, at_s, {_COLUMNS}, crc32 FROM reservations{where}", values).fetchall()
    sound = [row for row in rows if _problem(row) is None]
    own: list[Sequence[Any]] = []
    of_run_caps: defaultdict[str, tuple[Reservation, ...]] = defaultdict(tuple)
    for row in sound:
        name, _, account, *money, _ = row
        if text_of(account).startswith(_RUN_CAP):
            of_run_caps[text_of(name)] += (Reservation(text_of(account).removeprefix(_RUN_CAP), *money),)
        else:
            own.append(row)
    return StoredMoney(
        tuple(Reservation(*row[2:-1]) for row in own if row[0] == as_text(run)),
        spent_usd=sum(row[3] for row in own),
        uncertain_usd=sum(row[4] for row in own),
        num_broken=len(rows) - len(sound),
        of_run_caps=dict(of_run_caps),
    )


def has_reservations(connection: sqlite3.Connection) -> bool:
    """Whether the journal has the table; those of earlier versions may lack it."""
    return bool(connection.execute("SELECT 1 FROM pragma_table_info('reservations')").fetchall())


def reservation_problems(connection: sqlite3.Connection) -> Iterator[str]:
    """Says which rows are broken. A journal without the table has none."""
    if not has_reservations(connection):
        return
    checksum = "crc32" if _has_checksums(connection) else "NULL"
    try:
        for row in connection.execute(f"SELECT run, at_s, {_COLUMNS}, {checksum} FROM reservations"):
            if (problem := _problem(row)) is not None:
                yield f"run {text_of(row[0])!r}, account {text_of(row[2])!r}: {problem}"
    except sqlite3.DatabaseError as error:
        yield str(error)


def copy_reservations(old: sqlite3.Connection, new: sqlite3.Connection) -> bool:
    """Copies the sound rows into another journal; returns whether these are all."""
    create_reservations(new)
    checksum = "crc32" if _has_checksums(old) else "NULL"
    num_broken = 0
    try:
        for row in old.execute(f"SELECT run, at_s, {_COLUMNS}, {checksum} FROM reservations"):
            if _problem(row) is None:
                new.execute(f"INSERT INTO reservations (run, at_s, {_COLUMNS}, crc32) VALUES (?{', ?' * 7})", row)
            else:
                num_broken += 1
    except sqlite3.DatabaseError:
        return False
    return num_broken == 0


def write_reservations(
    connection: sqlite3.Connection, run: str, rows: Sequence[Reservation], *, of_run_cap: bool = False
) -> None:
    """Replaces the run's rows of these accounts, in one transaction; they are on disk when it returns.

    `of_run_cap`: they are for the run's own cap at an agent of several runs, and count for that alone.
    """
    if not rows:
        return
    values: list[str | float | int] = []
    for row in rows:
        money = (float(row.spent_usd), float(row.uncertain_usd), int(row.num_unpriced), float(row.largest_usd))
        account = _RUN_CAP + row.account if of_run_cap else row.account
        written = (as_text(run), time.time(), as_text(account), *money)
        values += [*written, values_checksum(written)]
    places = ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?)"] * len(rows))
    connection.execute(
        f"INSERT OR REPLACE INTO reservations (run, at_s, {_COLUMNS}, crc32) VALUES {places}",
        values,
    )


def _has_checksums(connection: sqlite3.Connection) -> bool:
    return bool(connection.execute("SELECT 1 FROM pragma_table_info('reservations') WHERE name = 'crc32'").fetchall())


def _problem(row: Sequence[Any]) -> str | None:
    """Says what is wrong with the values of a row, the last of which is the checksum, or returns None."""
    *values, checksum = row
    if not all(isinstance(value, float | int) for value in (values[1], *values[3:])):
        return "its money is no number"
    if checksum is not None and checksum != values_checksum(values):
        return "its money does not match its checksum"
    return None
