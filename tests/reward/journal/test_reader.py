"""A journal can be read while a run writes it, and shrunk when no run uses it."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
from journal_entries import an_entry, rows_of

from rewardflow.errors import InvalidInput, JournalError, JournalLocked
from rewardflow.reward.journal.database import open_for_writing
from rewardflow.reward.journal.reader import JournalReader, vacuum
from rewardflow.reward.journal.verdict_rows import JournalEntry, insert, row_of
from rewardflow.types import Reward


def write(path: Path, *entries: JournalEntry) -> None:
    with contextlib.closing(open_for_writing(path, lock_timeout_s=0)) as connection:
        insert(connection, [row_of(entry, "full") for entry in entries])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def test_a_row_is_read_as_it_was_written(path: Path) -> None:
    verdict = Reward(value=0.75, attempts=2, latency_s=1.5, cost_usd=0.002, tokens=812, explanation="Right.")
    write(path, an_entry(7, verdict, step=3, index=5, group_size=8, policy_version=2))
    (row,) = rows_of(path)
    assert (row.id, row.key, row.at_s, row.run) == (1, (7).to_bytes(16, "big"), 1.7e9, "run")
    assert (row.step, row.group_id, row.index) == (3, "q1", 5)
    assert (row.reward, row.identity, row.value, row.kind) == ("judge", "c0ffee", 0.75, None)
    assert (row.attempts, row.latency_s, row.cost_usd, row.tokens) == (2, 1.5, 0.002, 812)
    assert (row.verdict["explanation"], row.rollout["response"]) == ("Right.", "It is 42.")
    assert (row.rollout["policy_version"], row.rollout["group_size"]) == (2, 8)


def test_a_reader_sees_a_journal_while_it_is_written(path: Path) -> None:
    write(path, an_entry(1))
    with JournalReader(path) as reader:
        write(path, an_entry(2, Reward(kind="timeout"), run="other"))
        assert len(list(reader.rows())) == 2
        assert [row.run for row in reader.rows(run="other")] == ["other"]
        assert [row.id for row in reader.rows(scored_only=True)] == [1]
        assert [row.id for row in reader.newest(9, failed_only=True)] == [2]
        assert [row.id for row in reader.newest(1)] == [2]
        assert reader.row(1) is not None
        assert reader.row(3) is None


def test_a_reader_pages_through_all_rows(path: Path) -> None:
    write(path, *[an_entry(number) for number in range(1234)])
    assert [row.id for row in rows_of(path)] == list(range(1, 1235))


def test_rows_are_found_by_their_ids(path: Path) -> None:
    write(path, *[an_entry(number, Reward(kind="timeout") if number == 4 else None) for number in range(9)])
    with JournalReader(path) as reader:
        assert reader.last_id() == 9
        assert [row.id for row in reader.between(3, 6)] == [3, 4, 5, 6]
        assert [row.id for row in reader.between(1, 9, failed_only=True)] == [5]
        assert reader.between(10, 20) == []


def test_an_empty_journal_has_no_last_id(path: Path) -> None:
    open_for_writing(path, lock_timeout_s=0).close()
    with JournalReader(path) as reader:
        assert reader.last_id() == 0


def test_vacuum_deletes_only_what_is_named_and_makes_the_file_smaller(path: Path) -> None:
    day_s = 86_400.0
    ages_in_days = {"old": 30, "kept": 30, "new": 1}
    write(
        path,
        *[
            an_entry(number, run=run, at_s=time.time() - days * day_s, response="x" * 5000)
            for run, days in ages_in_days.items()
            for number in range(50)
        ],
    )
    assert vacuum(path).rows_deleted == 0
    result = vacuum(path, keep_runs=["kept"], older_than_s=7 * day_s)
    assert (result.rows_deleted, result.rows_left) == (50, 100)
    assert result.bytes_after < result.bytes_before
    assert {row.run for row in rows_of(path)} == {"kept", "new"}
    assert vacuum(path, keep_runs=["new"]).rows_deleted == 50
    assert vacuum(path, older_than_s=0).rows_left == 0


def test_vacuum_refuses_a_run_to_keep_that_does_not_exist(path: Path) -> None:
    write(path, an_entry(run="mine"))
    with pytest.raises(InvalidInput, match=r"\['mnie'\]; its runs are \['mine'\]"):
        vacuum(path, keep_runs=["mnie"])
    assert len(rows_of(path)) == 1


def test_vacuum_is_refused_while_a_run_has_the_journal_open(path: Path) -> None:
    with contextlib.closing(open_for_writing(path, lock_timeout_s=0)), pytest.raises(JournalLocked):
        vacuum(path, lock_timeout_s=0.05)


def test_vacuum_refuses_what_it_cannot_mean(path: Path) -> None:
    with pytest.raises(JournalError, match="must be an existing file"):
        vacuum(path)
    write(path, an_entry())
    with pytest.raises(InvalidInput, match="at least 0, got -1"):
        vacuum(path, older_than_s=-1)
