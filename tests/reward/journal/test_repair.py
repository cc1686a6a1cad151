"""A repaired journal holds everything that was sound, and the broken file stays."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

import pytest
from journal_entries import an_entry, key_of, rows_of

from rewardflow.errors import JournalLocked
from rewardflow.reward.journal.database import open_for_writing
from rewardflow.reward.journal.integrity import check_journal
from rewardflow.reward.journal.journal_lock import lock_run
from rewardflow.reward.journal.repair import repair_journal
from rewardflow.reward.journal.reservations import (
    Reservation,
    create_reservations,
    read_reservations,
    write_reservations,
)
from rewardflow.reward.journal.saved_costs import read_saved_costs
from rewardflow.reward.journal.verdict_rows import insert, look_up, row_of
from rewardflow.types import Reward

NUM_ROWS = 300
RESERVATIONS = (Reservation("judge", spent_usd=0.25, uncertain_usd=1.5), Reservation("other", num_unpriced=3))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "journal.db"
    with contextlib.closing(open_for_writing(path, lock_timeout_s=0)) as connection:
        verdict = Reward(value=0.125, explanation="ünï " * 99, cost_usd=0.5)
        insert(connection, [row_of(an_entry(number, verdict, group_id="ü"), "full") for number in range(NUM_ROWS)])
        create_reservations(connection)
        write_reservations(connection, "run", RESERVATIONS)
        connection.execute("CREATE TABLE extra (run TEXT, usd REAL)")
        connection.execute("INSERT INTO extra VALUES ('a', 0.25), ('b', 1.5)")
    return path


def test_sound_rows_and_other_tables_are_kept_and_a_broken_verdict_still_counts_as_spent(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE verdicts SET verdict = replace(verdict, '0.125', '0.925') WHERE id = 7")
        connection.execute("UPDATE verdicts SET tokens = 1000 WHERE id = 9")
    before = path.read_bytes()
    sound = [row for row in rows_of(path) if row.id not in (7, 9)]

    result = repair_journal(path)

    assert (result.rows_kept, result.costs_kept, result.rows_lost) == (NUM_ROWS - 2, 1, 1)
    assert result.broken_file.read_bytes() == before
    assert sorted(os.listdir(path.parent)) == sorted([path.name, result.broken_file.name])
    assert {mode & 0o777 for mode in (file.stat().st_mode for file in path.parent.iterdir())} == {0o600}
    assert check_journal(path).is_sound
    assert [row for row in rows_of(path) if row.id != 7] == sound
    with contextlib.closing(open_for_writing(path, lock_timeout_s=0)) as connection:
        assert read_saved_costs(connection, "run").usd == (NUM_ROWS - 1) * 0.5
        assert look_up(connection, [key_of(6), key_of(8)], failures=True).rewards == {}
        assert connection.execute("SELECT * FROM extra").fetchall() == [("a", 0.25), ("b", 1.5)]
        assert read_reservations(connection, "run", all_runs=False).before == RESERVATIONS


def test_a_broken_page_costs_its_rows(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096 * 20)
        file.write(b"\xee" * 4096)
    result = repair_journal(path)
    assert 0 < result.rows_lost < 30
    assert result.rows_kept + result.rows_lost == NUM_ROWS
    assert check_journal(path).is_sound
    assert len(rows_of(path)) == result.rows_kept


def test_what_is_still_in_the_wal_is_kept_too(path: Path) -> None:
    with contextlib.closing(open_for_writing(path, lock_timeout_s=0)) as connection:
        insert(connection, [row_of(an_entry(NUM_ROWS), "full")])
        wal = path.with_name("journal.db-wal").read_bytes()
        main = path.read_bytes()
    path.write_bytes(main)
    path.with_name("journal.db-wal").write_bytes(wal)  # as a killed process leaves it
    result = repair_journal(path)
    assert result.rows_kept == NUM_ROWS + 1
    assert result.broken_file.with_name(f"{result.broken_file.name}-wal").read_bytes() == wal
    assert len(rows_of(path)) == NUM_ROWS + 1


def test_a_journal_in_use_is_not_repaired(path: Path) -> None:
    with lock_run(path, "a"), pytest.raises(JournalLocked):
        repair_journal(path)
    assert os.listdir(path.parent) == [path.name]
