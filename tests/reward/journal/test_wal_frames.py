"""A WAL that changed on disk is told from one that a kill has left, and what its whole frames hold is kept."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from journal_entries import an_entry, rows_of

import rewardflow as rf
from rewardflow.errors import JournalError
from rewardflow.reward.journal.database import open_for_writing
from rewardflow.reward.journal.integrity import check_journal
from rewardflow.reward.journal.journal_lock import lock_run
from rewardflow.reward.journal.reader import JournalReader, vacuum
from rewardflow.reward.journal.repair import repair_journal
from rewardflow.reward.journal.reservations import Reservation, create_reservations, write_reservations
from rewardflow.reward.journal.verdict_rows import insert, row_of
from rewardflow.reward.journal.wal_frames import find_damage
from rewardflow.types import Reward

NUM_ROWS = 40
HEADER_BYTES = 32
FRAME_BYTES = 24 + 4096
TABLE_LEAF = 13


def write(connection: sqlite3.Connection, first: int, last: int) -> None:
    """Writes each verdict with a commit of its own."""
    for number in range(first, last):
        entry = an_entry(number, Reward(value=0.5, cost_usd=0.25, explanation="because " * 50))
        insert(connection, [row_of(replace(entry, key=number.to_bytes(16)), "full")])


def wal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def killed(path: Path, write_more: Callable[[sqlite3.Connection], None]) -> bytearray:
    """Leaves the files as a killed process leaves them; returns the WAL."""
    with contextlib.closing(open_for_writing(path, lock_timeout_s=0, takes_damaged_wal=True)) as connection:
        write_more(connection)
        journal, wal = path.read_bytes(), wal_of(path).read_bytes()
    path.write_bytes(journal)
    wal_of(path).write_bytes(wal)
    return bytearray(wal)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal whose every verdict is in the WAL alone."""
    path = tmp_path / "run.db"

    def write_all(connection: sqlite3.Connection) -> None:
        create_reservations(connection)
        write_reservations(connection, "run", [Reservation("judge", uncertain_usd=1.0)])
        write(connection, 0, NUM_ROWS // 2)
        write_reservations(connection, "run", [Reservation("judge", uncertain_usd=2.0)])
        write(connection, NUM_ROWS // 2, NUM_ROWS)

    killed(path, write_all)
    return path


def change(path: Path, place: int) -> None:
    wal = bytearray(wal_of(path).read_bytes())
    wal[place] ^= 1
    wal_of(path).write_bytes(wal)


def frame(number: int, byte: int = 0) -> int:
    return HEADER_BYTES + (number - 1) * FRAME_BYTES + byte


def num_frames(path: Path) -> int:
    return (wal_of(path).stat().st_size - HEADER_BYTES) // FRAME_BYTES


def open_agent(path: Path, max_cost_usd: float | None) -> None:
    async def main() -> None:
        async with rf.RewardAgent(len, journal=path, run="run", max_cost_usd=max_cost_usd):
            pass

    asyncio.run(main())


# -- what is damage --


def test_a_wal_that_a_kill_has_left_is_whole_and_so_is_none(path: Path, tmp_path: Path) -> None:
    assert find_damage(path) is None
    with JournalReader(path) as reader:
        assert reader.used_usd("run") == NUM_ROWS * 0.25 + 2.0
    assert find_damage(tmp_path / "none.db") is None
    open_agent(path, max_cost_usd=100.0)
    assert find_damage(path) is None


@pytest.mark.parametrize(
    ("place", "broken"),
    [
        (0, 0),
        (9, 0),
        (17, 0),
        (30, 0),
        (frame(1, 1000), 1),
        (frame(9, 3), 9),
        (frame(9, 7), 9),
        (frame(9, 8), 9),
        (frame(9, 20), 9),
        (frame(9, 24), 9),
    ],
    ids=["magic", "page size", "salts", "checksum", "first", "page", "end", "salts of", "checksum of", "content"],
)
def test_a_changed_byte_before_a_finished_commit_is_damage_wherever_it_is(path: Path, place: int, broken: int) -> None:
    change(path, place)
    damage = find_damage(path)
    assert damage is not None
    assert damage.frame == broken
    assert 0 < damage.num_commits <= NUM_ROWS + 10


def test_damage_is_found_through_a_link_to_the_journal_too(path: Path) -> None:
    link = path.with_name("link.db")
    link.symlink_to(path)
    change(path, frame(9, 1000))
    assert find_damage(link) is not None
    assert find_damage(link) == find_damage(path)


def test_a_changed_byte_of_the_last_commit_is_damage_as_long_as_the_file_ends_with_it(path: Path) -> None:
    change(path, frame(num_frames(path), 1000))
    assert find_damage(path) is not None
    with wal_of(path).open("ab") as wal:
        wal.write(b"a frame of an earlier use, or of a commit that was cut short")
    assert find_damage(path) is None  # it may have been cut short itself


def test_a_commit_that_a_kill_cut_short_is_no_damage(path: Path) -> None:
    wal = wal_of(path).read_bytes()
    wal_of(path).write_bytes(wal[: -FRAME_BYTES // 2])
    assert find_damage(path) is None
    wal_of(path).write_bytes(wal[: -FRAME_BYTES // 2] + bytes(FRAME_BYTES))
    assert find_damage(path) is None


def test_frames_of_an_earlier_use_of_the_file_are_no_damage(path: Path) -> None:
    def write_after_merging(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA wal_checkpoint(RESTART)")
        write(connection, NUM_ROWS, NUM_ROWS + 2)

    size = wal_of(path).stat().st_size
    killed(path, write_after_merging)
    assert wal_of(path).stat().st_size == size  # the frames of before are still behind those of the new use
    assert find_damage(path) is None
    change(path, frame(1, 1000))
    damage = find_damage(path)
    assert damage is not None
    assert damage.num_commits == 2


def test_a_transaction_that_was_given_up_is_no_damage(path: Path) -> None:
    def give_up(connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA cache_size = 5")  # so that SQLite writes pages before the commit
        connection.execute("BEGIN")
        write(connection, NUM_ROWS, NUM_ROWS + 100)
        connection.execute("ROLLBACK")
        write(connection, NUM_ROWS, NUM_ROWS + 1)

    killed(path, give_up)
    assert find_damage(path) is None


def test_a_checksum_in_big_endian_words_is_read_too(path: Path) -> None:
    """As another machine may have written it: only the order of the bytes in the sums differs."""
    wal = bytearray(wal_of(path).read_bytes())
    wal[3] |= 1
    sums = checksum(bytes(wal[:24]), (0, 0))
    wal[24:32] = struct.pack(">II", *sums)
    for number in range(1, num_frames(path) + 1):
        at = frame(number)
        sums = checksum(bytes(wal[at : at + 8] + wal[at + 24 : at + FRAME_BYTES]), sums)
        wal[at + 16 : at + 24] = struct.pack(">II", *sums)
    wal_of(path).write_bytes(wal)
    assert find_damage(path) is None
    assert len(rows_of(path)) == NUM_ROWS  # SQLite takes it so
    change(path, frame(9, 1000))
    assert find_damage(path) is not None


def checksum(data: bytes, before: tuple[int, int]) -> tuple[int, int]:
    first, second = before
    for one, other in struct.iter_unpack(">II", data):
        first = (first + one + second) % 2**32
        second = (second + other + first) % 2**32
    return first, second


# -- what follows from it --


def test_a_cap_refuses_a_damaged_wal_and_leaves_it_as_it_is(path: Path) -> None:
    change(path, frame(20, 1000))
    before = wal_of(path).read_bytes()
    with pytest.raises(JournalError, match=r"run\.db-wal changed on disk .* frame 20 is broken.*check --repair"):
        open_agent(path, max_cost_usd=100.0)
    with JournalReader(path) as reader, pytest.raises(JournalError, match="frame 20 is broken"):
        reader.used_usd("run")
    with pytest.raises(JournalError, match="frame 20 is broken"):
        vacuum(path)
    assert wal_of(path).read_bytes() == before


def test_a_run_without_a_cap_repairs_the_journal_and_finds_the_verdicts_behind_the_broken_frame(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change(path, frame(20, 1000))
    before = wal_of(path).read_bytes()
    with caplog.at_level(logging.ERROR):
        open_agent(path, max_cost_usd=None)
    (record,) = caplog.records
    assert f"the journal was repaired: it keeps {NUM_ROWS} verdicts. " in record.message
    assert len(rows_of(path)) == NUM_ROWS
    (broken_wal,) = path.parent.glob("run.db.broken-*-wal")
    assert broken_wal.read_bytes() == before


def test_a_journal_that_cannot_be_repaired_is_used_as_far_as_sqlite_takes_it_and_an_error_says_so_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change(path, frame(20, 1000))
    with caplog.at_level(logging.ERROR), lock_run(path, "another run"):
        open_agent(path, max_cost_usd=None)
    (record,) = caplog.records
    assert "finds no verdict in it, and makes their calls again" in record.message
    assert 0 < len(rows_of(path)) < NUM_ROWS


@pytest.mark.parametrize("number", [1, 20])
def test_a_check_names_the_damage_and_a_repair_keeps_every_row_behind_it(path: Path, number: int) -> None:
    change(path, frame(number, 1000))
    before = wal_of(path).read_bytes()
    found = check_journal(path)
    assert f"frame {number} is broken" in (found.wal_problem or "")
    assert (found.is_sound, found.rows < NUM_ROWS) == (False, True)
    result = repair_journal(path)
    assert (result.rows_kept, result.rows_lost, result.pages_lost) == (NUM_ROWS, 0, 0)
    assert wal_of(result.broken_file).read_bytes() == before
    assert sorted(file.name for file in path.parent.iterdir()) == sorted(
        ["run.db", result.broken_file.name, wal_of(result.broken_file).name]
    )
    assert check_journal(path).is_sound
    assert [row.id for row in rows_of(path)] == list(range(1, NUM_ROWS + 1))
    with JournalReader(path) as reader:
        assert reader.used_usd("run") == NUM_ROWS * 0.25 + 2.0
    open_agent(path, max_cost_usd=100.0)


def test_a_repair_says_what_only_the_broken_frame_held(path: Path) -> None:
    wal = wal_of(path).read_bytes()
    leaves = [number for number in range(1, num_frames(path) + 1) if wal[frame(number, 24)] == TABLE_LEAF]
    assert leaves[-1] == num_frames(path)
    change(path, frame(leaves[-1], 1000))
    result = repair_journal(path)
    assert (result.pages_lost, result.rows_kept, result.rows_lost) == (1, NUM_ROWS - 1, 1)
    assert check_journal(path).is_sound


def test_a_repair_keeps_the_rows_of_a_run_that_went_on_after_the_damage_too(path: Path) -> None:
    change(path, frame(20, 1000))
    kept: list[int] = []

    def go_on(connection: sqlite3.Connection) -> None:
        kept.extend(number for (number,) in connection.execute("SELECT id FROM verdicts"))
        write(connection, 1000, 1010)

    killed(path, go_on)
    assert 0 < len(kept) < NUM_ROWS - 10
    repair_journal(path)
    keys = [int.from_bytes(row.key) for row in rows_of(path)]
    assert set(keys) >= set(range(1000, 1010))
    assert keys[: len(kept) + 10] == [number - 1 for number in kept] + list(range(1000, 1010))
    assert len(set(keys)) == len(keys) > NUM_ROWS
    assert check_journal(path).is_sound
