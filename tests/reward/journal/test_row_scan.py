"""A scan returns every row of a broken file once, or says that it is lost."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from journal_entries import an_entry, rows_of

from rewardflow.errors import JournalError
from rewardflow.reward.journal.database import open_for_writing
from rewardflow.reward.journal.integrity import check_journal
from rewardflow.reward.journal.repair import repair_journal
from rewardflow.reward.journal.reservations import create_reservations
from rewardflow.reward.journal.row_scan import PLACE_LOST, scan
from rewardflow.reward.journal.saved_costs import read_saved_costs
from rewardflow.reward.journal.verdict_rows import insert, row_of
from rewardflow.types import Reward

NUM_ROWS = 400
PAGE_BYTES = 4096
TABLE_LEAF = 13
INDEX_LEAF = 10


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "journal.db"
    with contextlib.closing(open_for_writing(path, lock_timeout_s=0)) as connection:
        verdict, chance = Reward(value=0.125, cost_usd=0.5), random.Random(0)
        entries = [replace(an_entry(number, verdict), key=chance.randbytes(16)) for number in range(NUM_ROWS)]
        insert(connection, [row_of(entry, "full") for entry in entries])
    return path


def place_of_id(data: bytes, row_id: int) -> int:
    """Where in the file the id of a verdict is, of two bytes, or of one below 128."""
    wanted = bytes([row_id]) if row_id < 128 else bytes([0x80 | row_id >> 7, row_id & 0x7F])
    for page in range(PAGE_BYTES, len(data), PAGE_BYTES):
        if data[page] == TABLE_LEAF:
            for cell in range(int.from_bytes(data[page + 3 : page + 5], "big")):
                pointer = page + 8 + 2 * cell
                place = page + int.from_bytes(data[pointer : pointer + 2], "big")
                while data[place] >= 0x80:  # the number of bytes of the row
                    place += 1
                if data[place + 1 : place + 1 + len(wanted)] == wanted:
                    return place + 1
    raise AssertionError(f"no row {row_id}")


def change_id(path: Path, row_id: int, first_byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[place_of_id(data, row_id)] = first_byte
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("row_id", "first_byte"),
    [(150, 0x8F), (3, 4), (100, 5)],
    ids=["to one beyond the table", "to the id of its neighbour", "to a smaller one"],
)
def test_a_changed_id_costs_no_verdict_and_no_money(path: Path, row_id: int, first_byte: int) -> None:
    change_id(path, row_id, first_byte)
    found = check_journal(path)
    assert (found.rows, found.broken, found.is_sound) == (NUM_ROWS, (), False)
    result = repair_journal(path)
    assert (result.rows_kept, result.costs_kept, result.rows_lost) == (NUM_ROWS, 0, 0)
    assert len({row.key for row in rows_of(path)}) == NUM_ROWS
    with contextlib.closing(open_for_writing(path, lock_timeout_s=0)) as connection:
        assert read_saved_costs(connection, "run").usd == NUM_ROWS * 0.5


def test_a_row_that_an_index_lists_and_the_table_lacks_is_counted_as_lost(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA writable_schema = ON")  # so that the deletion leaves the indexes as they are
        indexes = connection.execute("SELECT * FROM sqlite_master WHERE type = 'index'").fetchall()
        connection.execute("DELETE FROM sqlite_master WHERE type = 'index'")
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM verdicts WHERE id = 7")
        connection.execute("PRAGMA writable_schema = ON")
        connection.executemany("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", indexes)
    found = check_journal(path)
    assert found.rows == NUM_ROWS - 1
    assert [(row.id, row.why) for row in found.broken] == [(7, f"it cannot be read: {PLACE_LOST}")]
    assert repair_journal(path).rows_lost == 1


def test_a_huge_id_in_a_file_without_sound_indexes_does_not_make_a_scan_endless(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE verdicts SET id = 1 << 40 WHERE id = 400")
        connection.execute("DROP INDEX verdicts_by_key")
        connection.execute("DROP INDEX verdicts_by_run")
        rows = list(scan(connection))
    assert [row.id for row in rows] == [*range(1, NUM_ROWS), 1 << 40]


def test_ids_that_grew_beyond_a_file_that_was_shrunk_are_read(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE verdicts SET id = id + 100000000")
    assert (check_journal(path).rows, check_journal(path).is_sound) == (NUM_ROWS, True)


def first_page(data: bytes, kind: int) -> int:
    return next(page for page in range(PAGE_BYTES, len(data), PAGE_BYTES) if data[page] == kind)


def test_cells_that_a_page_does_not_have_are_not_counted_as_rows(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[first_page(data, TABLE_LEAF) + 4] |= 0x40  # the number of cells: SQLite finds rows without values behind them
    path.write_bytes(data)
    found = check_journal(path)
    assert (found.rows, found.broken, found.is_sound) == (NUM_ROWS, (), False)
    assert repair_journal(path).rows_kept == NUM_ROWS


def test_a_broken_entry_of_an_index_is_not_counted_as_a_lost_row(path: Path) -> None:
    data = bytearray(path.read_bytes())
    page = first_page(data, INDEX_LEAF)
    cell = page + int.from_bytes(data[page + 8 : page + 10], "big")
    end = cell + 1 + data[cell]  # the last two bytes of an entry are the id
    data[end - 2] ^= 0x40
    path.write_bytes(data)
    found = check_journal(path)
    assert (found.rows, found.broken, found.is_sound) == (NUM_ROWS, (), False)
    assert repair_journal(path).rows_kept == NUM_ROWS


def test_a_changed_type_of_a_column_stops_a_run_and_a_repair_keeps_every_row(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"id INTEGER PRIMARY KEY", b"id YNTEGER PRIMARY KEY"))
    with pytest.raises(
        JournalError, match="column id must be INTEGER, got YNTEGER; `rewardflow journal check --repair"
    ):
        open_for_writing(path, lock_timeout_s=0)
    assert "column id must be INTEGER, got YNTEGER" in check_journal(path).page_problems
    assert repair_journal(path).rows_kept == NUM_ROWS
    assert check_journal(path).is_sound


def test_two_tables_that_begin_at_the_same_page_stop_a_run_and_a_repair_keeps_every_row(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        create_reservations(connection)
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master WHERE name = 'verdicts_by_key') "
            "WHERE name = 'reservations'"
        )
    problem = "one table or index must begin at page 3, got several"
    with pytest.raises(JournalError, match=problem):
        open_for_writing(path, lock_timeout_s=0)
    assert problem in check_journal(path).page_problems
    assert repair_journal(path).rows_kept == NUM_ROWS
    assert check_journal(path).is_sound


@pytest.mark.parametrize("seed", range(20))
def test_many_changed_bits_leave_no_row_uncounted(path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(path.read_bytes())
    for _ in range(19):
        data[chance.randrange(PAGE_BYTES, len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    with contextlib.suppress(JournalError):
        result = repair_journal(path)
        assert result.rows_kept + result.costs_kept + result.rows_lost == NUM_ROWS


@pytest.mark.parametrize("seed", range(16))
def test_one_changed_bit_leaves_no_row_uncounted(path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(path.read_bytes())
    data[chance.randrange(PAGE_BYTES, len(data))] ^= 1 << chance.randrange(8)  # behind the schema
    path.write_bytes(data)
    result = repair_journal(path)
    assert result.rows_kept + result.costs_kept + result.rows_lost == NUM_ROWS
    assert check_journal(path).is_sound


@pytest.mark.parametrize("seed", range(6))
def test_a_sector_of_garbage_is_survived_and_leaves_most_rows(path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(path.read_bytes())
    start = chance.randrange(PAGE_BYTES // 512, len(data) // 512) * 512
    data[start : start + 512] = chance.randbytes(512)
    path.write_bytes(data)
    with contextlib.suppress(JournalError):
        assert repair_journal(path).rows_kept > NUM_ROWS * 0.8
