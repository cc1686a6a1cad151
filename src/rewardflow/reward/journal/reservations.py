"""Stores the money of a run that its verdicts do not show: reservations, uncertain costs, and costs without a verdict.

Always true: a run has at most one row per account, and the row holds everything that all its sessions have left. A row
that was written survives `kill -9`. While calls are in flight `uncertain_usd` covers them too, so that a session that
was killed has left an upper bound of what its calls may have cost; a clean end writes the exact sums. A changed row
is never believed: it is left out and counted as broken, also where it names another run, because the name may be what
changed. Rows of earlier versions have no checksum and are believed.

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
from rewardflow.reward.journal.database import text_of, texts_as_bytes
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
    num_broken: int = 0  # rows of any run that changed on disk, which the sums leave out
    page_problem: str | None = None  # what SQLite says about the pages of the table, which may hide rows
    of_run_caps: Mapping[str, tuple[Reservation, ...]] = EMPTY  # of runs with caps of their own

    def require_sound(self, path: Path) -> None:
        """Raises if any row is broken or may be hidden, because then nobody knows what is left of a cap."""
        if self.num_broken or self.page_problem:
            found = f"{self.num_broken} changed rows" if self.num_broken else f"a broken page ({self.page_problem})"
            raise JournalError(
                f"a journal must hold its money as it was written when there is a cap, got {found} in the table "
                f"reservations of {path}; `rewardflow journal check {path}` names what is broken, and with --repair "
                "drops it"
            )


def create_reservations(connection: sqlite3.Connection) -> None:
    """Adds the table, or its checksums, to a journal that lacks them, as those of earlier versions do."""
    connection.execute(_TABLE)
    if not _has_checksums(connection):
        connection.execute("ALTER TABLE reservations ADD COLUMN crc32 INTEGER")


def read_reservations(
    connection: sqlite3.Connection, run: str, *, all_runs: bool, checks_pages: bool = False
) -> StoredMoney:
    """Returns the run's rows, and the sums of its money or of the money of all runs.

    `checks_pages` lets SQLite check the pages of the table too: a changed pointer in one hides rows without an error.
    """
    name = as_text(run)
    num_broken = 0
    counted: list[tuple[str, str, Sequence[Any]]] = []
    of_run_caps: defaultdict[str, tuple[Reservation, ...]] = defaultdict(tuple)
    for row, problem in _rows(connection):  # of all runs: a row whose run changed is found under no name
        its_run, _, account, *money, _ = row
        if problem is not None:
            num_broken += 1
        elif not (all_runs or text_of(its_run) == name):
            continue
        elif text_of(account).startswith(_RUN_CAP):
            of_run_caps[text_of(its_run)] += (Reservation(text_of(account).removeprefix(_RUN_CAP), *money),)
        else:
            counted.append((text_of(its_run), text_of(account), money))
    return StoredMoney(
        tuple(Reservation(account, *money) for its_run, account, money in counted if its_run == name),
        spent_usd=sum(money[0] for _, _, money in counted),
        uncertain_usd=sum(money[1] for _, _, money in counted),
        num_broken=num_broken,
        page_problem=next(_page_problems(connection), None) if checks_pages else None,
        of_run_caps=dict(of_run_caps),
    )


def has_reservations(connection: sqlite3.Connection) -> bool:
    """Whether the journal has the table; those of earlier versions may lack it."""
    return bool(connection.execute("SELECT 1 FROM pragma_table_info('reservations')").fetchall())


def reservation_problems(connection: sqlite3.Connection) -> Iterator[str]:
    """Says which rows are broken. A journal without the table has none."""
    if not has_reservations(connection):
        return
    try:
        for row, problem in _rows(connection):
            if problem is not None:
                yield f"run {text_of(row[0])!r}, account {text_of(row[2])!r}: {problem}"
    except sqlite3.DatabaseError as error:
        yield str(error)


def copy_reservations(old: sqlite3.Connection, new: sqlite3.Connection) -> bool:
    """Copies the sound rows into another journal, which keeps the newer of two rows; returns whether these are all."""
    create_reservations(new)
    is_newer = "NOT EXISTS (SELECT 1 FROM reservations WHERE run = ?1 AND account = ?3 AND at_s >= ?2)"
    insert = (
        f"INSERT OR REPLACE INTO reservations (run, at_s, {_COLUMNS}, crc32) "
        f"SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8 WHERE {is_newer}"
    )
    num_broken = 0
    try:
        for (run, at_s, account, *rest), problem in _rows(old):
            if problem is None:
                new.execute(insert, (text_of(run), at_s, text_of(account), *rest))
            else:
                num_broken += 1
        return num_broken == 0 and next(_page_problems(old), None) is None
    except sqlite3.DatabaseError:
        return False


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


def _rows(connection: sqlite3.Connection) -> Iterator[tuple[Sequence[Any], str | None]]:
    """Yields every row, texts as bytes, its checksum last, and says what is wrong with it."""
    checksum = "crc32" if _has_checksums(connection) else "NULL"
    with texts_as_bytes(connection):
        rows = connection.execute(
            f"SELECT run, at_s, {_COLUMNS}, {checksum}, typeof(run) = 'text' AND typeof(account) = 'text' "
            "FROM reservations"
        ).fetchall()
    for *row, has_names in rows:
        yield row, _problem(row) if has_names else "its run and its account must be texts"


def _page_problems(connection: sqlite3.Connection) -> Iterator[str]:
    with texts_as_bytes(connection):
        found = connection.execute("PRAGMA integrity_check('reservations')").fetchall()
    lines = [line for (text,) in found for line in text_of(text).splitlines()]
    yield from (line for line in lines if line != "ok" and not line.startswith("***"))  # a heading


def _problem(row: Sequence[Any]) -> str | None:
    """Says what is wrong with the values of a row, the last of which is the checksum, or returns None."""
    *values, checksum = row
    if not all(isinstance(value, float | int) for value in (values[1], *values[3:])):
        return "its money is no number"
    if checksum is not None and checksum != values_checksum(values):
        return "its money does not match its checksum"
    return None
