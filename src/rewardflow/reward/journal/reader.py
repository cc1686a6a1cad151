"""Reads a journal from outside a run, also while a run writes to it, and shrinks its file when no run uses it.

Always true: a reader changes nothing and never blocks a run: it reads page by page, because a long read would keep the
WAL of a live run growing. `vacuum` deletes only the rows it was asked to delete, and never while a run has the file
open.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import orjson

from rewardflow.errors import InvalidInput
from rewardflow.reward.journal.database import (
    LOCK_TIMEOUT_S,
    close,
    open_for_reading,
    open_for_writing,
    require_file,
    require_whole_wal,
    text_of,
    translated_errors,
)
from rewardflow.reward.journal.reservations import create_reservations, has_reservations, read_reservations
from rewardflow.reward.journal.saved_costs import read_saved_costs
from rewardflow.reward.journal.verdict_rows import COLUMNS, SCORED, as_text
from rewardflow.types import FailureKind

ROWS_A_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class JournalRow:
    """One row as it was written. `rollout` and `verdict` hold its texts, or `digests` of texts that were not stored.

    The fields have the order of the columns.
    """

    id: int
    key: bytes
    at_s: float
    run: str
    step: int
    group_id: str
    index: int
    reward: str
    identity: str
    value: float | None
    kind: FailureKind | None
    attempts: int
    latency_s: float
    cost_usd: float
    tokens: int
    verdict: Mapping[str, Any]
    rollout: Mapping[str, Any]


class JournalReader:
    """A journal opened read-only; works while a run writes to it, and never blocks that run."""

    def __init__(self, path: str | os.PathLike[str], *, lock_timeout_s: float = LOCK_TIMEOUT_S) -> None:
        self.path = Path(path)
        self._connection = open_for_reading(self.path, lock_timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def used_usd(self, run: str) -> float:
        """Returns what a run has spent or may have spent; raises `JournalError` if that changed on disk."""
        require_whole_wal(self.path)
        with translated_errors(self.path):
            saved = read_saved_costs(self._connection, run, proven=True)
            saved.require_known(self.path)
            if not has_reservations(self._connection):
                return saved.usd
            money = read_reservations(self._connection, run, all_runs=False, checks_pages=True)
        money.require_sound(self.path)
        return saved.usd + money.spent_usd + money.uncertain_usd

    def paid_usd(self, run: str, identities: Sequence[str]) -> dict[tuple[int, str, int], float]:
        """Returns what the verdicts of these rewards in a run have cost, by step, group and index."""
        query = (
            "SELECT step, group_id, sample_index, total(cost_usd) FROM verdicts WHERE run = ? AND identity IN "
            f"({', '.join('?' * len(identities))}) GROUP BY step, group_id, sample_index"
        )
        with translated_errors(self.path):
            rows = self._connection.execute(query, (as_text(run), *map(as_text, identities))).fetchall()
        return {(step, text_of(group_id), index): usd for step, group_id, index, usd in rows}

    def row(self, row_id: int) -> JournalRow | None:
        return next(iter(self._select("id = ?", (row_id,), "LIMIT 1")), None)

    def newest(self, limit: int, *, run: str | None = None, failed_only: bool = False) -> list[JournalRow]:
        """Returns the last `limit` rows, oldest first."""
        where, values = _conditions(run, "value IS NULL" if failed_only else None)
        return self._select(where, (*values, limit), "ORDER BY id DESC LIMIT ?")[::-1]

    def rows(self, *, run: str | None = None, scored_only: bool = False) -> Iterator[JournalRow]:
        """Yields all rows, oldest first."""
        where, values = _conditions(run, SCORED if scored_only else None)
        last_id = 0
        while page := self._select(f"id > ? AND {where}", (last_id, *values, ROWS_A_PAGE), "ORDER BY id LIMIT ?"):
            yield from page
            last_id = page[-1].id

    def first_failure(self, kind: str) -> int | None:
        """Returns the id of the first verdict that failed in this way."""
        with translated_errors(self.path):
            query = "SELECT id FROM verdicts WHERE value IS NULL AND kind = ? ORDER BY id LIMIT 1"
            found = self._connection.execute(query, (kind,)).fetchone()
        return None if found is None else int(found[0])

    def last_id(self) -> int:
        """Returns the largest id, 0 for an empty journal. Ids grow in the order of writing."""
        with translated_errors(self.path):
            (last_id,) = self._connection.execute("SELECT coalesce(max(id), 0) FROM verdicts").fetchone()
        return int(last_id)

    def between(self, first_id: int, last_id: int, *, failed_only: bool = False) -> list[JournalRow]:
        """Returns the rows with these ids, both ends included, oldest first."""
        also = " AND value IS NULL" if failed_only else ""
        return self._select(f"id BETWEEN ? AND ?{also}", (first_id, last_id), "ORDER BY id")

    def _select(self, where: str, values: Sequence[object], tail: str) -> list[JournalRow]:
        with translated_errors(self.path):
            rows = self._connection.execute(f"SELECT id, {COLUMNS} FROM verdicts WHERE {where} {tail}", values)
            return [_journal_row(row) for row in rows]


def _conditions(run: str | None, also: str | None) -> tuple[str, tuple[str, ...]]:
    conditions = ["run = ?"] if run is not None else []
    conditions += [also] if also is not None else []
    return " AND ".join(conditions) or "true", (as_text(run),) if run is not None else ()


def _journal_row(row: Sequence[Any]) -> JournalRow:
    *columns, verdict, rollout = row
    return JournalRow(*[*columns, orjson.loads(verdict), orjson.loads(rollout)])


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumResult:
    rows_deleted: int
    rows_left: int
    bytes_before: int
    bytes_after: int


def vacuum(
    path: str | os.PathLike[str],
    *,
    keep_runs: Sequence[str] = (),
    older_than_s: float | None = None,
    lock_timeout_s: float = LOCK_TIMEOUT_S,
) -> VacuumResult:
    """Deletes rows older than `older_than_s`, or all, but never those of `keep_runs`; then shrinks the file.

    Without either argument, deletes nothing. Needs the file alone, so it fails while a run has it open.
    """
    path = Path(path)
    require_file(path)
    if older_than_s is not None and not older_than_s >= 0:
        raise InvalidInput(f"older_than_s must be a number of at least 0, got {older_than_s!r}")
    bytes_before = _num_bytes(path)
    with (
        translated_errors(path),
        contextlib.closing(open_for_writing(path, lock_timeout_s, exclusive=True)) as connection,
    ):
        rows_deleted = _delete(connection, path, [as_text(run) for run in keep_runs], older_than_s)
        connection.execute("VACUUM")
        (rows_left,) = connection.execute("SELECT count(*) FROM verdicts").fetchone()
        close(connection)
    return VacuumResult(
        rows_deleted=rows_deleted, rows_left=rows_left, bytes_before=bytes_before, bytes_after=_num_bytes(path)
    )


def _delete(connection: sqlite3.Connection, path: Path, keep_runs: Sequence[str], older_than_s: float | None) -> int:
    if not keep_runs and older_than_s is None:
        return 0
    create_reservations(connection)
    query = "SELECT run FROM verdicts UNION SELECT run FROM reservations ORDER BY run"
    runs = [run for (run,) in connection.execute(query)]
    unknown = [run for run in keep_runs if run not in runs]
    if unknown:  # otherwise a typing mistake would delete the run that the user wants to keep
        raise InvalidInput(f"keep_runs must name runs of {path}, got {unknown}; its runs are {runs}")
    before_s = time.time() - older_than_s if older_than_s is not None else None
    condition = f"run NOT IN ({', '.join('?' * len(keep_runs))}) AND (? IS NULL OR at_s < ?)"
    values = (*keep_runs, before_s, before_s)
    num_deleted = connection.execute(f"DELETE FROM verdicts WHERE {condition}", values).rowcount
    # The row of run '' holds the money of an agent of all runs, so it stays as long as the verdicts of any run.
    connection.execute(
        f"DELETE FROM reservations WHERE {condition} AND (run != '' OR NOT EXISTS (SELECT 1 FROM verdicts))", values
    )
    return num_deleted


def _num_bytes(path: Path) -> int:
    files = (path, path.with_name(path.name + "-wal"))
    return sum(file.stat().st_size for file in files if file.exists())
