"""What a verdict has cost where the table and its index differ: never less than either of them shows."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from journal_entries import an_entry

from rewardflow.reward.journal.costs_by_row import RowCosts, costs_by_row, index_is_proven
from rewardflow.reward.journal.database import open_for_writing
from rewardflow.reward.journal.verdict_rows import insert, row_of
from rewardflow.types import Reward


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(open_for_writing(tmp_path / "run.db", lock_timeout_s=0)) as connection:
        for run in ("a", "b"):
            rows = [row_of(an_entry(n, Reward(value=0.5, cost_usd=0.25), run=run), "full") for n in range(4)]
            insert(connection, rows)
        yield connection


def change_table_alone(connection: sqlite3.Connection, statement: str) -> None:
    """Changes the table of verdicts while SQLite does not know that it has indexes."""
    connection.execute("PRAGMA writable_schema = ON")
    indexes = connection.execute("SELECT * FROM sqlite_master WHERE type = 'index'").fetchall()
    connection.execute("DELETE FROM sqlite_master WHERE type = 'index'")
    connection.execute("PRAGMA writable_schema = RESET")  # reads the schema again
    connection.execute(statement)
    connection.execute("PRAGMA writable_schema = ON")
    connection.executemany("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", indexes)
    connection.execute("PRAGMA writable_schema = RESET")


def test_a_table_and_an_index_that_agree_prove_each_run(journal: sqlite3.Connection) -> None:
    assert all(index_is_proven(journal, run) for run in ("a", "b", "unknown", None))
    assert costs_by_row(journal) == {"a": RowCosts(1.0), "b": RowCosts(1.0)}


@pytest.mark.parametrize(
    ("statement", "of_a", "of_b"),
    [
        ("DELETE FROM verdicts WHERE id = 2", RowCosts(1.0, 1), RowCosts(1.0)),
        ("UPDATE verdicts SET cost_usd = 0 WHERE id = 2", RowCosts(1.0, 1), RowCosts(1.0)),
        ("UPDATE verdicts SET cost_usd = 0.5 WHERE id = 2", RowCosts(1.25, 1), RowCosts(1.0)),
        ("UPDATE verdicts SET cost_usd = 'free' WHERE id = 2", RowCosts(1.0, 1), RowCosts(1.0)),
        ("UPDATE verdicts SET run = 'b' WHERE id = 2", RowCosts(1.0, 1), RowCosts(1.25, 1)),
    ],
)
def test_a_row_that_the_two_show_differently_counts_with_the_larger_cost_in_every_run_that_they_name(
    journal: sqlite3.Connection, statement: str, of_a: RowCosts, of_b: RowCosts
) -> None:
    change_table_alone(journal, statement)
    assert not index_is_proven(journal, "a")
    assert not index_is_proven(journal, None)
    assert costs_by_row(journal) == {"a": of_a, "b": of_b}


def test_a_row_whose_cost_neither_shows_is_counted_as_unknown(journal: sqlite3.Connection) -> None:
    journal.execute("UPDATE verdicts SET cost_usd = 'x', cost_copy_usd = 'x' WHERE id = 2")
    assert costs_by_row(journal)["a"] == RowCosts(0.75, 0, 1)
