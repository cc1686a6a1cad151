"""A check finds every broken row, names it, and changes nothing."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from journal_entries import an_entry

from rewardflow.errors import JournalError, NotAJournal
from rewardflow.reward.journal.database import open_for_writing
from rewardflow.reward.journal.integrity import BrokenRow, check_journal
from rewardflow.reward.journal.verdict_rows import insert, row_of
from rewardflow.types import Reward

NUM_ROWS = 1200


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "journal.db"
    with contextlib.closing(open_for_writing(path, lock_timeout_s=0)) as connection:
        rows = [
            an_entry(number, Reward(value=0.125, cost_usd=0.5, explanation="because " * 50))
            for number in range(NUM_ROWS)
        ]
        insert(connection, [row_of(entry, "full") for entry in rows])
    return path


def change(path: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def test_a_sound_journal_is_sound_and_unchanged(path: Path) -> None:
    before = path.read_bytes()
    found = check_journal(path)
    assert (found.is_sound, found.rows, found.rows_without_checksum) == (True, NUM_ROWS, 0)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("change_of_row", "why"),
    [
        ("verdict = replace(verdict, '0.125', '0.925')", "its verdict does not match its checksum"),
        ("cost_usd = 7", "its cost is 7.0, and the copy of it 0.5"),
        ("cost_copy_usd = 7", "its cost is 0.5, and the copy of it 7.0"),
        ("cost_usd = 7, cost_copy_usd = 7", "its place, its cost or its rollout does not match its checksum"),
        ("rollout = CAST(X'ff' AS TEXT)", "its place, its cost or its rollout does not match its checksum"),
        ("rollout = '{', verdict_crc32 = NULL, rest_crc32 = NULL", "it holds no readable JSON"),
        ("verdict = '{}', verdict_crc32 = NULL, rest_crc32 = NULL", "it holds no readable JSON"),
    ],
)
def test_a_changed_row_is_named_with_what_is_wrong(path: Path, change_of_row: str, why: str) -> None:
    change(path, f"UPDATE verdicts SET {change_of_row} WHERE id = 700")
    found = check_journal(path)
    assert (found.broken, found.rows) == ((BrokenRow(700, why),), NUM_ROWS - 1)


def test_a_broken_page_costs_its_rows_and_is_told_in_the_words_of_sqlite(path: Path) -> None:
    for page in (20, path.stat().st_size // 4096 - 1):
        with path.open("r+b") as file:
            file.seek(4096 * page)
            file.write(b"\xee" * 4096)
    found = check_journal(path)
    assert 0 < len(found.broken) < 100
    assert found.rows + len(found.broken) == NUM_ROWS
    assert found.page_problems


def test_a_row_of_an_earlier_version_counts_as_sound_without_a_checksum(path: Path) -> None:
    change(path, "UPDATE verdicts SET verdict_crc32 = NULL, rest_crc32 = NULL WHERE id = 1")
    assert (check_journal(path).is_sound, check_journal(path).rows_without_checksum) == (True, 1)
    for column in ("verdict_crc32", "rest_crc32"):
        change(path, f"ALTER TABLE verdicts DROP COLUMN {column}")
    assert check_journal(path).rows_without_checksum == NUM_ROWS


def test_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"x" * 9000)
    with pytest.raises(NotAJournal):
        check_journal(tmp_path / "other")
    with pytest.raises(JournalError, match="existing file"):
        check_journal(tmp_path / "none")
