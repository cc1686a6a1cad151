"""What a cap counts of the verdicts that are saved, also where a cost was changed on disk."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from pathlib import Path

import pytest
from journal_entries import an_entry

import rewardflow as rf
from rewardflow.errors import BudgetExhausted, JournalError
from rewardflow.reward.journal.database import open_for_writing
from rewardflow.reward.journal.repair import repair_journal
from rewardflow.reward.journal.saved_costs import SavedCosts, read_saved_costs, spent_by_run_usd
from rewardflow.reward.journal.verdict_rows import insert, row_of
from rewardflow.types import Reward

NUM_ROWS = 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "run.db"
    with contextlib.closing(open_for_writing(path, lock_timeout_s=0)) as connection:
        insert(connection, [row_of(an_entry(n, Reward(value=0.5, cost_usd=0.25)), "full") for n in range(NUM_ROWS)])
    return path


def change(path: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def costs(path: Path, run: str | None = "run") -> SavedCosts:
    with contextlib.closing(open_for_writing(path, lock_timeout_s=0)) as connection:
        return read_saved_costs(connection, run)


@pytest.mark.parametrize("run", ["run", None])
@pytest.mark.parametrize(
    ("changed", "counted"),
    [
        ("cost_usd = 0", SavedCosts(5.0, 1)),
        ("cost_usd = 0.125", SavedCosts(5.0, 1)),
        ("cost_usd = 0.75", SavedCosts(5.5, 1)),
        ("cost_usd = NULL", SavedCosts(5.0, 1)),
        ("cost_usd = 'free'", SavedCosts(5.0, 1)),
        ("cost_usd = 9e999", SavedCosts(5.0, 1)),
        ("cost_copy_usd = 0.75", SavedCosts(5.5, 1)),
        ("cost_copy_usd = -1.0", SavedCosts(5.0, 1)),
        ("cost_usd = NULL, cost_copy_usd = 'free'", SavedCosts(4.75, 1, 1)),
    ],
)
def test_a_changed_cost_never_makes_the_sum_smaller(
    path: Path, run: str | None, changed: str, counted: SavedCosts
) -> None:
    assert costs(path, run) == SavedCosts(5.0)
    change(path, f"UPDATE verdicts SET {changed} WHERE id = 7")
    assert costs(path, run) == counted


def test_the_sum_reads_the_index_and_not_the_rows(path: Path) -> None:
    with contextlib.closing(open_for_writing(path, lock_timeout_s=0)) as connection:
        statements: list[str] = []
        connection.set_trace_callback(statements.append)
        read_saved_costs(connection, "run")
        connection.set_trace_callback(None)
        (plan,) = connection.execute(f"EXPLAIN QUERY PLAN {statements[0]}").fetchall()
    assert "COVERING INDEX verdicts_by_run" in plan[3]


def test_a_journal_of_an_earlier_version_gets_copies_for_its_new_rows_and_believes_the_others(path: Path) -> None:
    change(path, "DROP INDEX verdicts_by_run")
    change(path, "ALTER TABLE verdicts DROP COLUMN cost_copy_usd")
    change(path, "CREATE INDEX verdicts_by_run ON verdicts (run, cost_usd)")
    with contextlib.closing(open_for_writing(path, lock_timeout_s=0)) as connection:
        insert(connection, [row_of(an_entry(99, Reward(value=0.5, cost_usd=0.25)), "full")])
        connection.execute("UPDATE verdicts SET cost_usd = 0")
        assert read_saved_costs(connection, "run") == SavedCosts(0.25, 1)
        (num_columns,) = connection.execute("SELECT count(*) FROM pragma_index_info('verdicts_by_run')").fetchone()
    assert num_columns == 3


# -- sums that are proven --


def place_of_index(path: Path) -> int:
    """Where in the file the index of costs begins."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'verdicts_by_run'"
        return (int(connection.execute(query).fetchone()[0]) - 1) * 4096


def test_no_changed_bit_of_the_index_makes_a_proven_sum_smaller(path: Path) -> None:
    sound = path.read_bytes()
    page = place_of_index(path)
    assert sound[page] == 10  # the one page of the index, with all of its entries
    places = [place for place in range(page, page + 4096) if sound[place]]
    for place in places:
        bit = place % 8
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 1 << bit]) + sound[place + 1 :])
        with contextlib.closing(sqlite3.connect(path)) as connection:
            try:
                assert read_saved_costs(connection, "run", proven=True).usd >= 5.0, f"byte {place - page}, bit {bit}"
                assert spent_by_run_usd(connection, proven=True)["run"] >= 5.0, f"byte {place - page}, bit {bit}"
            except sqlite3.DatabaseError:
                continue  # a journal that cannot be read is refused


def test_a_broken_page_of_the_table_leaves_the_sum_to_the_index(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with contextlib.closing(open_for_writing(path, lock_timeout_s=0)) as connection:
        verdict = Reward(value=0.5, cost_usd=0.25, explanation="because " * 50)
        insert(connection, [row_of(an_entry(n, verdict), "full") for n in range(400)])
    with path.open("r+b") as file:
        file.seek(4096 * 20)
        file.write(b"\xee" * 4096)
    with contextlib.closing(open_for_writing(path, lock_timeout_s=0)) as connection:
        costs = read_saved_costs(connection, "run", proven=True)
    assert costs.usd == 100.0
    assert 0 < costs.num_unlike < 50


def test_a_sound_journal_is_proven_without_a_word(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.closing(open_for_writing(path, lock_timeout_s=0)) as connection:
        costs = read_saved_costs(connection, "run", proven=True)
        assert costs == SavedCosts(5.0)
        assert spent_by_run_usd(connection, proven=True) == {"run": 5.0}
    costs.warn_of_changes(path)
    assert not caplog.records


# -- the whole agent --


def score(path: Path, cap_usd: float, num_rollouts: int) -> tuple[list[rf.Reward], int]:
    num_calls = 0

    async def judge(solution_str: str) -> float:
        nonlocal num_calls
        num_calls += 1
        rf.report_usage(cost_usd=0.25)
        return 0.5

    rollouts = [rf.Rollout(group_id=f"q{number}", response="yes") for number in range(num_rollouts)]
    rewards = rf.score(rollouts, judge, journal=path, max_cost_usd=cap_usd, call_cost_usd=0.25, max_concurrency=1)
    return rewards, num_calls


def test_a_cost_edited_to_nothing_leaves_no_more_of_the_cap_and_its_verdict_is_asked_for_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run.db"
    score(path, cap_usd=1.0, num_rollouts=4)
    change(path, "UPDATE verdicts SET cost_usd = 0 WHERE id = 2")
    with caplog.at_level(logging.ERROR), pytest.raises(BudgetExhausted, match="spent so far: 1 USD"):
        score(path, cap_usd=1.0, num_rollouts=4)
    assert "the costs of 1 verdicts changed on disk" in caplog.text
    rewards, num_calls = score(path, cap_usd=1.25, num_rollouts=4)
    assert (num_calls, [reward.cached for reward in rewards]) == (1, [True, False, True, True])


def test_an_index_that_hides_rows_leaves_no_more_of_the_cap(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "run.db"
    score(path, cap_usd=1.0, num_rollouts=4)
    data = bytearray(path.read_bytes())
    data[place_of_index(path) + 4] = 1  # its number of entries
    path.write_bytes(data)
    with caplog.at_level(logging.ERROR), pytest.raises(BudgetExhausted, match="spent so far: 1 USD"):
        score(path, cap_usd=1.0, num_rollouts=5)
    assert "the table of verdicts and its index differ in 3 rows" in caplog.text


def test_a_repair_restores_the_cost_that_was_written_and_with_it_the_verdict(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    score(path, cap_usd=1.0, num_rollouts=4)
    change(path, "UPDATE verdicts SET cost_usd = 0 WHERE id = 2")
    change(path, "UPDATE verdicts SET cost_copy_usd = 0 WHERE id = 3")
    repaired = repair_journal(path)
    assert (repaired.rows_kept, repaired.costs_restored, repaired.rows_lost) == (4, 1, 0)
    rewards, num_calls = score(path, cap_usd=1.0, num_rollouts=4)
    assert (num_calls, [reward.cached for reward in rewards]) == (0, [True] * 4)
    assert costs(path, None) == SavedCosts(1.0)


def test_a_cap_refuses_a_journal_in_which_a_cost_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    score(path, cap_usd=1.0, num_rollouts=4)
    change(path, "UPDATE verdicts SET cost_usd = 'x', cost_copy_usd = 'x' WHERE id = 2")
    change(path, "UPDATE verdicts SET cost_copy_usd = 'y' WHERE id = 2")
    with pytest.raises(JournalError, match=r"1 verdicts in .*run\.db whose cost is no number"):
        score(path, cap_usd=1.0, num_rollouts=4)
