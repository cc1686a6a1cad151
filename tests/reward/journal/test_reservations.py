"""A run's money beside its verdicts: one row per account, read again by the next session."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from rewardflow.reward.journal.reader import vacuum
from rewardflow.reward.journal.reservations import Reservation, StoredMoney
from rewardflow.reward.journal.verdict_journal import Journal


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
        journal._connection.execute("DROP TABLE reservations")
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
