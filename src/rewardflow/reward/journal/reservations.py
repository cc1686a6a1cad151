"""Stores the money of a run that its verdicts do not show: reservations, uncertain costs, and costs without a verdict.

Always true: a run has at most one row per account, and the row holds everything that all its sessions have left. A row
that was written survives `kill -9`. While calls are in flight `uncertain_usd` covers them too, so that a session that
was killed has left an upper bound of what its calls may have cost; a clean end writes the exact sums.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rewardflow.reward.journal.verdict_rows import as_text

_TABLE = """
CREATE TABLE IF NOT EXISTS reservations (
    run TEXT NOT NULL,
    account TEXT NOT NULL,
    at_s REAL NOT NULL,
    spent_usd REAL NOT NULL,
    uncertain_usd REAL NOT NULL,
    num_unpriced INTEGER NOT NULL,
    largest_usd REAL NOT NULL,
    PRIMARY KEY (run, account)
) WITHOUT ROWID
"""
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


def create_reservations(connection: sqlite3.Connection) -> None:
    """Adds the table to a journal that lacks it, as those of earlier versions do."""
    connection.execute(_TABLE)


def read_reservations(connection: sqlite3.Connection, run: str, *, all_runs: bool) -> StoredMoney:
    """Returns the run's rows, and the sums of its money or of the money of all runs."""
    where, values = ("", ()) if all_runs else (" WHERE run = ?", (as_text(run),))
    rows = connection.execute(f"SELECT run, {_COLUMNS} FROM reservations{where}", values).fetchall()
    return StoredMoney(
        tuple(Reservation(*row[1:]) for row in rows if row[0] == as_text(run)),
        spent_usd=sum(row[2] for row in rows),
        uncertain_usd=sum(row[3] for row in rows),
    )


def write_reservations(connection: sqlite3.Connection, run: str, rows: Sequence[Reservation]) -> None:
    """Replaces the run's rows of these accounts, in one transaction; they are on disk when it returns."""
    if not rows:
        return
    values: list[str | float | int] = []
    for row in rows:
        values += [as_text(run), as_text(row.account), time.time()]
        values += [row.spent_usd, row.uncertain_usd, row.num_unpriced, row.largest_usd]
    places = ", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * len(rows))
    connection.execute(
        f"INSERT OR REPLACE INTO reservations (run, account, at_s, {_COLUMNS.removeprefix('account, ')}) "
        f"VALUES {places}",
        values,
    )
