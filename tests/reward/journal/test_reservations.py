"""A run's money beside its verdicts: one row per account, read again by the next session."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest
from journal_entries import an_entry

import rewardflow as rf
from rewardflow.errors import JournalError
from rewardflow.reward.journal.database import open_for_writing
from rewardflow.reward.journal.integrity import check_journal
from rewardflow.reward.journal.reader import vacuum
from rewardflow.reward.journal.repair import repair_journal
from rewardflow.reward.journal.reservations import Reservation, StoredMoney, read_reservations
from rewardflow.reward.journal.verdict_journal import Journal
from rewardflow.reward.journal.verdict_rows import insert, row_of


def write(path: Path, run: str | None, *rows: Reservation) -> list[bool]:
    async def main() -> list[bool]:
        answers: list[bool] = []
        journal = Journal(path, run=run)
        journal.start(asyncio.get_running_loop())
        journal.reserve(rows, answers.append)
        await journal.aclose()
        return answers

    return asyncio.run(main())


def read(path: Path, run: str | None) -> StoredMoney:
    journal = Journal(path, run=run)
    asyncio.run(journal.aclose())
    return journal.stored_money


def test_a_row_is_read_again_as_it_was_written(tmp_path: Path) -> None:
    row = Reservation("judge", spent_usd=0.1, uncertain_usd=0.2, num_unpriced=3, largest_usd=0.4)
    assert write(tmp_path / "run.db", "a", row) == [True]
    assert read(tmp_path / "run.db", "a") == StoredMoney((row,), spent_usd=0.1, uncertain_usd=0.2)


def test_a_run_has_one_row_per_account_and_sees_no_other_run(tmp_path: Path) -> None:
    for usd in (1.0, 2.0):
        write(tmp_path / "run.db", "a", Reservation("judge", uncertain_usd=usd), Reservation("x", uncertain_usd=0.5))
    write(tmp_path / "run.db", "b", Reservation("judge", uncertain_usd=9.0))
    assert read(tmp_path / "run.db", "a").uncertain_usd == 2.5
    assert read(tmp_path / "run.db", "c") == StoredMoney()


def test_an_agent_of_all_runs_counts_the_money_of_all_and_keeps_its_own_rows(tmp_path: Path) -> None:
    write(tmp_path / "run.db", "a", Reservation("judge", uncertain_usd=1.0))
    own = Reservation("judge", uncertain_usd=2.0)
    write(tmp_path / "run.db", None, own)
    assert read(tmp_path / "run.db", None) == StoredMoney((own,), uncertain_usd=3.0)


def test_a_reservation_that_cannot_be_written_says_so_and_stops_the_agent(tmp_path: Path) -> None:
    async def main() -> list[bool]:
        answers: list[bool] = []
        journal = Journal(tmp_path / "run.db", run="a")
        journal._writer._connection.execute("DROP TABLE reservations")
        journal.start(
            asyncio.get_running_loop(), failed=lambda error: answers.append("no such table" not in str(error))
        )
        journal.reserve([Reservation("judge")], answers.append)
        with contextlib.suppress(Exception):
            await journal.aclose()
        return answers

    assert asyncio.run(main()) == [False, False]


def test_vacuum_forgets_the_money_of_the_runs_that_it_deletes(tmp_path: Path) -> None:
    write(tmp_path / "run.db", "a", Reservation("judge", uncertain_usd=1.0))
    vacuum(tmp_path / "run.db", older_than_s=0.0)
    assert read(tmp_path / "run.db", "a") == StoredMoney()


def change(path: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


@pytest.mark.parametrize("value", ["0.01", "'much'", "X'00'"])
def test_changed_money_is_named_and_not_believed_under_a_cap(tmp_path: Path, value: str) -> None:
    path = tmp_path / "run.db"
    write(path, "a", Reservation("judge", uncertain_usd=7.25), Reservation("x", uncertain_usd=1.0))
    change(path, f"UPDATE reservations SET uncertain_usd = {value} WHERE account = 'judge'")
    (problem,) = check_journal(path).reservation_problems
    assert problem.startswith("run 'a', account 'judge': its money ")
    assert not check_journal(path).is_sound
    assert (read(path, "a").uncertain_usd, read(path, "a").num_broken) == (1.0, 1)

    async def open_agent(max_cost_usd: float | None) -> None:
        async with rf.RewardAgent(len, journal=path, run="a", max_cost_usd=max_cost_usd):
            pass

    with pytest.raises(JournalError, match=r"the table reservations of .*`rewardflow journal check"):
        asyncio.run(open_agent(5.0))
    asyncio.run(open_agent(None))
    assert repair_journal(path).tables_cut_short == ("reservations",)
    assert check_journal(path).is_sound
    asyncio.run(open_agent(5.0))


async def open_capped(path: Path, run: str) -> None:
    async with rf.RewardAgent(len, journal=path, run=run, max_cost_usd=5.0):
        pass


@pytest.mark.parametrize("name", ["'b'", "X'61'", "CAST(X'ff' AS TEXT)"], ids=["another run", "bytes", "no text"])
def test_a_row_whose_run_changed_blocks_a_cap_and_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / "run.db"
    write(path, "a", Reservation("judge", uncertain_usd=7.25))
    change(path, f"UPDATE reservations SET run = {name}")
    assert len(check_journal(path).reservation_problems) == 1
    for run in ("a", "b", "another"):  # nobody knows any more whose money it was
        with pytest.raises(JournalError, match=r"1 changed rows in the table reservations of"):
            asyncio.run(open_capped(path, run))
    repair_journal(path)
    asyncio.run(open_capped(path, "a"))


def test_a_sound_row_of_another_run_blocks_no_cap(tmp_path: Path) -> None:
    write(tmp_path / "run.db", "a", Reservation("judge", uncertain_usd=7.25))
    asyncio.run(open_capped(tmp_path / "run.db", "b"))


def test_a_page_that_hides_a_row_blocks_a_cap_and_no_run_without_one(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    write(path, "a", Reservation("judge", uncertain_usd=7.25), Reservation("x", uncertain_usd=1.0))
    change_bytes(path, {page_of_reservations(path) + 4: 1})  # its number of rows
    assert (read(path, "a").uncertain_usd, read(path, "a").num_broken) == (7.25, 0)
    assert not check_journal(path).is_sound
    with pytest.raises(JournalError, match=r"got a broken page \(.*\) in the table reservations of"):
        asyncio.run(open_capped(path, "a"))
    assert repair_journal(path).tables_cut_short == ("reservations",)
    asyncio.run(open_capped(path, "a"))


def test_no_changed_bit_of_the_page_makes_money_smaller_under_a_cap(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    write(path, "a", Reservation("judge", uncertain_usd=1.0), Reservation("other", uncertain_usd=1.0))
    sound, page = path.read_bytes(), page_of_reservations(path)
    for place in (place for place in range(page, page + 4096) if sound[place] or place < page + 12):
        for bit in range(8):
            path.write_bytes(sound[:place] + bytes([sound[place] ^ 1 << bit]) + sound[place + 1 :])
            try:
                with contextlib.closing(open_for_writing(path, lock_timeout_s=0)) as connection:
                    money = read_reservations(connection, "a", all_runs=False, checks_pages=True)
                money.require_sound(path)
            except (JournalError, sqlite3.DatabaseError):
                continue
            assert money.uncertain_usd == 2.0, f"byte {place - page}, bit {bit}"


def page_of_reservations(path: Path) -> int:
    """Where in the file the one page of the table begins."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'reservations'"
        return (int(connection.execute(query).fetchone()[0]) - 1) * 4096


def change_bytes(path: Path, changed: dict[int, int]) -> None:
    data = bytearray(path.read_bytes())
    for place, value in changed.items():
        data[place] = value
    path.write_bytes(data)


def test_a_table_of_an_earlier_version_is_believed_and_gets_checksums(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    write(path, "a", Reservation("judge", uncertain_usd=7.25))
    change(path, "ALTER TABLE reservations DROP COLUMN crc32")
    assert check_journal(path).is_sound
    assert read(path, "a").uncertain_usd == 7.25
    write(path, "a", Reservation("judge", uncertain_usd=8.0))
    change(path, "UPDATE reservations SET uncertain_usd = 1")
    assert read(path, "a").num_broken == 1


def test_vacuum_keeps_the_money_of_an_agent_of_all_runs_and_of_a_run_without_verdicts(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with contextlib.closing(open_for_writing(path, lock_timeout_s=0)) as connection:
        insert(connection, [row_of(an_entry(1, run="a"), "full"), row_of(an_entry(2, run="b"), "full")])
    write(path, None, Reservation("judge", uncertain_usd=7.0))
    write(path, "killed", Reservation("judge", uncertain_usd=5.0))
    assert vacuum(path, keep_runs=["a", "killed"]).rows_deleted == 1
    assert read(path, None).uncertain_usd == 12.0
    vacuum(path, keep_runs=["a"])
    assert read(path, None).uncertain_usd == 7.0
    vacuum(path, older_than_s=0.0)
    assert read(path, None) == StoredMoney()
