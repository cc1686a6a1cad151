"""A row has the same checksums when it is read again, and others when any of it has changed."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from journal_entries import an_entry, key_of

from rewardflow.reward.journal.database import open_for_writing
from rewardflow.reward.journal.row_checksums import CHECKSUM_COLUMNS, row_checksums
from rewardflow.reward.journal.verdict_rows import COLUMNS, insert, look_up, row_of
from rewardflow.types import Reward

numbers = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, -0.0, 1.0, 1e300, 5e-324])


@given(
    latency_s=numbers,
    cost_usd=numbers,
    value=st.floats(allow_nan=False, allow_infinity=False),
    text=st.text(st.characters(codec=None)),
    tokens=st.integers(),
)
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_row_is_read_as_it_was_written(tmp_path: Path, text: str, **measures: Any) -> None:
    entry = an_entry(1, Reward(explanation=text, **measures), response=text, group_id=text, extra_info={"t": text})
    with contextlib.closing(open_for_writing(tmp_path / "j.db", lock_timeout_s=0)) as connection:
        connection.execute("DELETE FROM verdicts")
        insert(connection, [row_of(entry, "full")])
        for as_read in (str, bytes):
            connection.text_factory = as_read
            *row, verdict_crc32, rest_crc32, cost_copy_usd = connection.execute(
                f"SELECT {COLUMNS}, {CHECKSUM_COLUMNS} FROM verdicts"
            ).fetchone()
            assert row_checksums(row) == (verdict_crc32, rest_crc32, cost_copy_usd)


@pytest.mark.parametrize("column", COLUMNS.split(", "))
def test_a_change_of_any_column_changes_a_checksum(column: str) -> None:
    row = list(row_of(an_entry(1, Reward(value=0.125, cost_usd=0.5)), "full"))[:-3]
    place = COLUMNS.split(", ").index(column)
    before = row_checksums(row)
    row[place] = b"other" if isinstance(row[place], bytes) else "other"
    after = row_checksums(row)
    assert before != after
    assert (before[0] != after[0]) == (column in ("key", "verdict"))


def changed(connection: sqlite3.Connection, old: str, new: str) -> None:
    connection.execute("UPDATE verdicts SET verdict = replace(verdict, ?, ?)", (old, new))


@pytest.mark.parametrize(("old", "new"), [("0.125", "0.925"), ("{", ""), ('"value"', "X'00'"), ("null", '"x"')])
def test_a_changed_digit_is_seen_and_costs_that_row(tmp_path: Path, old: str, new: str) -> None:
    with contextlib.closing(open_for_writing(tmp_path / "j.db", lock_timeout_s=0)) as connection:
        insert(connection, [row_of(an_entry(1, Reward(value=0.125)), "full")])
        changed(connection, old, new)
        insert(connection, [row_of(an_entry(2, Reward(value=0.125)), "full")])
        found = look_up(connection, [key_of(1), key_of(2)], failures=True)
    assert {key: reward.value for key, reward in found.rewards.items()} == {key_of(2): 0.125}
    assert found.num_broken == 1


@pytest.mark.parametrize("column", ["cost_usd", "cost_copy_usd"])
@pytest.mark.parametrize("cost", ["0.0", "0.0005000000000000001", "7", "'x'", "X'00'"])
def test_a_verdict_whose_cost_was_changed_is_not_believed(tmp_path: Path, column: str, cost: str) -> None:
    with contextlib.closing(open_for_writing(tmp_path / "j.db", lock_timeout_s=0)) as connection:
        insert(connection, [row_of(an_entry(n, Reward(value=0.125, cost_usd=0.0005)), "full") for n in (1, 2)])
        connection.execute(f"UPDATE verdicts SET {column} = {cost} WHERE id = 1")
        found = look_up(connection, [key_of(1), key_of(2)], failures=True)
    assert (set(found.rewards), found.num_broken) == ({key_of(2)}, 1)


def test_a_row_without_checksums_is_believed_if_it_can_be_read(tmp_path: Path) -> None:
    with contextlib.closing(open_for_writing(tmp_path / "j.db", lock_timeout_s=0)) as connection:
        insert(connection, [row_of(an_entry(1, Reward(value=0.125)), "full")])
        connection.execute("UPDATE verdicts SET verdict_crc32 = NULL, rest_crc32 = NULL, cost_copy_usd = NULL")
        insert(connection, [row_of(an_entry(2, Reward(value=0.125)), "full")])
        assert len(look_up(connection, [key_of(1), key_of(2)], failures=True).rewards) == 2
        connection.execute("UPDATE verdicts SET verdict = '{\"value\": 1' WHERE verdict_crc32 IS NULL")
        found = look_up(connection, [key_of(1), key_of(2)], failures=True)
    assert (set(found.rewards), found.num_broken) == ({key_of(2)}, 1)
