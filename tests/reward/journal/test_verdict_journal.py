"""The journal's promises: saved means on disk, found means exactly what was written, nothing is lost silently."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from journal_entries import an_entry, key_of, rows_of

import rewardflow as rf
from rewardflow import clock
from rewardflow.errors import InvalidInput, JournalError, JournalWriteFailed
from rewardflow.reward.journal.integrity import check_journal
from rewardflow.reward.journal.journal_writer import MAX_ROWS_A_COMMIT
from rewardflow.reward.journal.verdict_journal import Journal, JournalEntry
from rewardflow.types import Reward


async def save(journal: Journal, *entries: JournalEntry) -> list[JournalEntry]:
    """Submits all entries at once; returns them in the order in which `saved` was called."""
    done = asyncio.get_running_loop().create_future()
    answered: list[JournalEntry] = []

    def saved(entry: JournalEntry) -> None:
        answered.append(entry)
        if len(answered) == len(entries):
            done.set_result(None)

    for entry in entries:
        journal.write(entry, saved)
    await done
    return answered


async def look_up(journal: Journal, keys: Sequence[bytes], *, failures: bool = True) -> Mapping[bytes, Reward]:
    found: asyncio.Future[Mapping[bytes, Reward]] = asyncio.get_running_loop().create_future()
    journal.find(keys, found.set_result, failures=failures)
    return await found


@contextlib.asynccontextmanager
async def opened(path: Path, **options: Any) -> Any:
    journal = Journal(path, run=options.pop("run", "run"), **options)
    journal.start(asyncio.get_running_loop())
    try:
        yield journal
    finally:
        await journal.aclose()


def there_and_back(path: Path, *entries: JournalEntry) -> Mapping[bytes, Reward]:
    """Writes in one session and looks up in the next."""

    async def main() -> Mapping[bytes, Reward]:
        async with opened(path) as journal:
            await save(journal, *entries)
        async with opened(path) as journal:
            return await look_up(journal, [entry.key for entry in entries])

    return clock.run(main())


def spent_usd(path: Path, run: str) -> float:
    journal = Journal(path, run=run)
    asyncio.run(journal.aclose())
    return journal.spent_usd()


@contextlib.contextmanager
def full_disk(num_bytes: int) -> Iterator[None]:
    """Limits the size of every file of this process: a write then fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


# -- lookups --


def test_a_lookup_sees_the_writes_that_were_submitted_before_it(path: Path) -> None:
    async def main() -> None:
        async with opened(path) as journal:
            for number in range(50):
                journal.write(an_entry(number), lambda _: None)
                assert await look_up(journal, [key_of(number)]) != {}

    clock.run(main())


def test_one_lookup_takes_thousands_of_keys(path: Path) -> None:
    entries = [an_entry(number, Reward(value=float(number))) for number in range(2500)]
    found = there_and_back(path, *entries)
    assert {key: reward.value for key, reward in found.items()} == {key_of(n): float(n) for n in range(2500)}


def test_what_a_run_has_spent_is_known_when_it_is_opened_again(path: Path) -> None:
    paid = Reward(value=1.0, cost_usd=0.5)
    there_and_back(path, an_entry(1, paid), an_entry(2, paid), an_entry(3, paid, run="another"))
    assert spent_usd(path, "run") == 1.0
    assert spent_usd(path, "new") == 0.0


# -- what cannot be stored --


def test_an_entry_that_cannot_be_stored_costs_only_itself(path: Path) -> None:
    async def main() -> None:
        journal = Journal(path, run="run")
        journal.start(asyncio.get_running_loop())
        await save(journal, an_entry(1), an_entry(2, Reward(latency_s="soon")), an_entry(3))  # type: ignore[arg-type]
        assert (journal.statistics().rows_written, journal.statistics().lost) == (2, 1)
        with pytest.raises(JournalWriteFailed, match=r"1 verdicts .* could not convert string to float"):
            await journal.aclose()

    clock.run(main())
    assert [row.key for row in rows_of(path)] == [key_of(1), key_of(3)]


def test_a_wrong_store_is_refused_rather_than_storing_what_is_private(path: Path) -> None:
    with pytest.raises(InvalidInput, match="store must be one of full, hash, got 'none'"):
        Journal(path, run="run", store="none")  # type: ignore[arg-type]
    assert not path.exists()


# -- commits --


def test_many_writes_share_a_commit_and_are_answered_in_order_on_the_loop_thread(path: Path) -> None:
    threads = set()

    async def main() -> None:
        async with opened(path) as journal:
            entries = [an_entry(number) for number in range(5000)]
            journal.write(an_entry(9999), lambda _: threads.add(threading.current_thread()))
            assert await save(journal, *entries) == entries
            statistics = journal.statistics()
            assert (statistics.rows_written, statistics.pending, statistics.failed_writes) == (5001, 0, 0)
            assert 5001 / MAX_ROWS_A_COMMIT <= statistics.commits < 100

    asyncio.run(main())
    assert threads == {threading.main_thread()}


def test_whatever_was_called_saved_survives_a_kill(path: Path) -> None:
    code = f"""
import asyncio, sys
sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}
from rewardflow.reward.journal.verdict_journal import JournalEntry, Journal
from rewardflow.types import Reward, Rollout

def write(journal, number):
    entry = JournalEntry(key=number.to_bytes(16, "big"), run="run", reward="judge", identity="", at_s=0.0,
                  rollout=Rollout(group_id="q", response="r" * 500), verdict=Reward(value=number / 3))
    def saved(entry):
        sys.stdout.write(f"{{number}}\\n")
        sys.stdout.flush()
        write(journal, number + 10)
    journal.write(entry, saved)

async def main():
    journal = Journal({str(path)!r}, run="run")
    journal.start(asyncio.get_running_loop())
    for number in range(10):
        write(journal, number)
    await asyncio.Event().wait()

asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        printed = [int(child.stdout.readline()) for _ in range(200)]
        child.send_signal(signal.SIGKILL)
        *whole, last = child.stdout.read().split("\n")
        printed += [int(line) for line in whole]
    assert last == ""
    values = {row.key: row.value for row in rows_of(path)}
    assert {key_of(number): number / 3 for number in printed}.items() <= values.items()
    assert there_and_back(path, an_entry(printed[-1])).keys() == {key_of(printed[-1])}


def test_a_full_disk_is_loud_delays_no_verdict_and_is_made_good_when_there_is_room(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with opened(path) as journal:
            await save(journal, an_entry(1))
            with full_disk(16_384):
                for number in (2, 3, 4):
                    await save(journal, an_entry(number, response="x" * 50_000))
                statistics = journal.statistics()
                assert (statistics.rows_written, statistics.pending, statistics.failed_writes) == (1, 3, 3)
                assert statistics.last_error is not None
            await save(journal, an_entry(5))
            assert (journal.statistics().rows_written, journal.statistics().pending) == (5, 0)

    with caplog.at_level(logging.ERROR):
        clock.run(main())
    assert [row.key for row in rows_of(path)] == [key_of(number) for number in (1, 2, 3, 4, 5)]
    assert len(caplog.records) == 1
    assert "NOT saved" in caplog.text


def test_rows_that_could_not_be_saved_are_tried_again_at_the_end(path: Path) -> None:
    async def main() -> None:
        async with opened(path) as journal:
            with full_disk(16_384):
                await save(journal, an_entry(1, response="x" * 50_000))
            assert journal.statistics().pending == 1

    clock.run(main())
    assert len(rows_of(path)) == 1


def test_closing_raises_when_rows_remain_unsaved(path: Path) -> None:
    async def main() -> None:
        journal = Journal(path, run="run")
        journal.start(asyncio.get_running_loop())
        await save(journal, an_entry(1))
        with full_disk(16_384):
            await save(journal, an_entry(2, response="x" * 50_000))
            with pytest.raises(
                JournalWriteFailed, match=r"1 verdicts were delivered but could not be saved in .*journal"
            ):
                await journal.aclose()

    clock.run(main())
    assert [row.key for row in rows_of(path)] == [key_of(1)]


def test_a_held_file_delays_rows_but_not_their_delivery(path: Path) -> None:
    async def main() -> None:
        async with opened(path, lock_timeout_s=0.05) as journal:
            with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                await save(journal, an_entry(1))
                assert (journal.statistics().rows_written, journal.statistics().pending) == (0, 1)
                other.execute("ROLLBACK")
            await save(journal, an_entry(2))

    clock.run(main())
    assert len(rows_of(path)) == 2


def test_the_first_failed_commit_is_told_once_after_its_verdicts(path: Path) -> None:
    told: list[object] = []

    async def main() -> None:
        journal = Journal(path, run="run")
        journal.start(asyncio.get_running_loop(), failed=told.append)
        await save(journal, an_entry(1))
        assert told == []
        with full_disk(16_384):
            for number in (2, 3):
                journal.write(an_entry(number, response="x" * 50_000), told.append)
                await save(journal, an_entry(number + 10, response="x" * 50_000))
        await journal.aclose()

    clock.run(main())
    assert [type(one).__name__ for one in told] == ["JournalEntry", "JournalWriteFailed", "JournalEntry"]
    assert "journal.db must be written, but" in str(told[1])


def test_a_file_that_another_program_holds_does_not_stop_sending(path: Path) -> None:
    told: list[object] = []

    async def main() -> None:
        journal = Journal(path, run="run", lock_timeout_s=0.05)
        journal.start(asyncio.get_running_loop(), failed=told.append)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            await save(journal, an_entry(1))
        await journal.aclose()

    clock.run(main())
    assert told == []


@pytest.mark.parametrize("suffix", ["", "-wal"])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_journal_that_is_deleted_or_replaced_under_a_run_is_noticed_at_the_next_commit(
    path: Path, suffix: str, replaced: bool
) -> None:
    told: list[JournalWriteFailed] = []
    file = path.with_name(path.name + suffix)

    async def main() -> None:
        journal = Journal(path, run="run")
        journal.start(asyncio.get_running_loop(), failed=told.append)
        await save(journal, an_entry(1))
        file.rename(path.with_name("away"))
        if replaced:
            file.write_bytes(b"")
        await save(journal, an_entry(2))
        assert journal.statistics().rows_written == 1
        problem = "was replaced by another file" if replaced else "was deleted or moved"
        with pytest.raises(JournalWriteFailed, match=rf"1 verdicts were delivered but .*{file.name} {problem} while"):
            await journal.aclose()
        assert len(told) == 1
        assert problem in str(told[0])

    clock.run(main())


def test_a_journal_that_is_overwritten_by_a_shorter_one_under_a_run_is_noticed_at_the_next_commit(path: Path) -> None:
    told: list[JournalWriteFailed] = []

    async def main() -> None:
        journal = Journal(path, run="run")
        journal.start(asyncio.get_running_loop(), failed=told.append)
        await save(journal, an_entry(1))
        os.truncate(path, 100)  # as `cp short.db run.db` does
        await save(journal, an_entry(2))
        assert "was overwritten or cut short" in str(told[0])
        with pytest.raises(JournalWriteFailed, match="1 verdicts were delivered but could not be saved"):
            await journal.aclose()

    clock.run(main())


@pytest.mark.parametrize("num_bytes", [0, 5000])
def test_a_wal_that_is_overwritten_under_a_run_is_noticed_and_not_merged_into_the_journal(
    path: Path, num_bytes: int
) -> None:
    told: list[JournalWriteFailed] = []

    async def session(numbers: Iterable[int]) -> None:
        journal = Journal(path, run="run")
        journal.start(asyncio.get_running_loop(), failed=told.append)
        for number in numbers:
            await save(journal, an_entry(number, response="x" * 3000))
        if told:
            with pytest.raises(JournalWriteFailed, match=r"journal\.db-wal was overwritten or cut short while"):
                await journal.aclose()
        else:
            await journal.aclose()

    def overwriting() -> Iterable[int]:
        yield from range(40, 80)
        wal = path.with_name(f"{path.name}-wal")
        size = wal.stat().st_size
        os.truncate(wal, num_bytes)
        if num_bytes == 0:
            os.truncate(wal, size)  # with zeros
        yield 80

    clock.run(session(range(40)))
    assert told == []
    clock.run(session(overwriting()))
    assert len(told) == 1
    assert len(rows_of(path)) >= 40
    assert check_journal(path).page_problems == ()


def test_closing_tells_that_all_verdicts_are_in_a_file_that_is_gone(path: Path) -> None:
    async def main() -> None:
        journal = Journal(path, run="run")
        journal.start(asyncio.get_running_loop())
        await save(journal, an_entry(1), an_entry(2))
        os.unlink(path)
        with pytest.raises(JournalWriteFailed, match="2 verdicts were saved in a file that is gone"):
            await journal.aclose()

    clock.run(main())


# -- broken rows --


def break_a_byte(path: Path, text: bytes, to: bytes) -> None:
    content = path.read_bytes()
    assert content.count(text) == 1
    path.write_bytes(content.replace(text, to))


def break_a_page(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(4096 * 200)
        file.write(b"\xee" * 4096)


@pytest.mark.parametrize("byte", [b"\xff", b"\0", b"9", b'"'])
def test_one_bad_byte_in_one_row_costs_that_row(path: Path, byte: bytes, caplog: pytest.LogCaptureFixture) -> None:
    entries = [an_entry(number, Reward(value=0.5, explanation=f"because {number:04}")) for number in range(2000)]

    async def main() -> None:
        async with opened(path) as journal:
            await save(journal, *entries)
        break_a_byte(path, b'because 0150"', b'because 0150"'.replace(b"c", byte))
        async with opened(path) as journal:
            found = await look_up(journal, [entry.key for entry in entries])
            assert {entry.key for entry in entries} - set(found) == {key_of(150)}
            await look_up(journal, [key_of(150)])
            assert journal.statistics().broken_rows == 2
            await save(journal, entries[150])
            assert await look_up(journal, [key_of(150)])

    with caplog.at_level(logging.ERROR):
        clock.run(main())
    assert len(caplog.records) == 1
    assert "saved verdicts are broken; their calls are made again" in caplog.text
    assert "rewardflow journal check" in caplog.text


def test_a_broken_page_costs_the_rows_on_it(path: Path) -> None:
    entries = [an_entry(number, Reward(value=0.5, explanation="because " * 100)) for number in range(2000)]

    async def main() -> None:
        async with opened(path) as journal:
            await save(journal, *entries)
        break_a_page(path)
        async with opened(path) as journal:
            found = await look_up(journal, [entry.key for entry in entries])
            assert 1900 < len(found) < 2000
            assert journal.statistics().broken_rows == 2000 - len(found)

    clock.run(main())


# -- lifetime --


def run_on_both_clocks(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    clock.run(main())
    asyncio.run(main())


def test_closing_answers_everything_first_and_leaves_one_file(path: Path) -> None:
    async def main() -> None:
        answered: list[object] = []
        journal = Journal(path, run="run")
        journal.start(asyncio.get_running_loop())
        journal.write(an_entry(1), answered.append)
        journal.find([key_of(1)], answered.append)
        await journal.aclose()
        await journal.aclose()
        assert len(answered) == 2
        assert os.listdir(path.parent) == [path.name]

    run_on_both_clocks(main)


def test_closing_gives_up_on_a_file_that_stays_held_and_says_what_is_missing(path: Path) -> None:
    async def main() -> None:
        journal = Journal(path, run="run", lock_timeout_s=60)
        journal.start(asyncio.get_running_loop())
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            journal.write(an_entry(1), lambda _: None)
            with pytest.raises(JournalWriteFailed, match=r"within timeout_s=0\.05: 1 delivered verdicts"):
                await journal.aclose(timeout_s=0.05)

    asyncio.run(main())


def test_the_jumping_clock_stands_still_while_the_disk_works(path: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with opened(path) as journal:
            async with asyncio.timeout(0.001):
                await save(journal, *[an_entry(number) for number in range(100)])
                await look_up(journal, [key_of(1)])
            assert loop.time() == 0.0
            await asyncio.sleep(3600)
        assert loop.time() == 3600

    clock.run(main())


def test_a_callback_that_raises_is_reported_and_the_others_still_run(path: Path) -> None:
    async def main() -> None:
        reported: list[str] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(str(context["exception"])))

        def fail(_: object) -> None:
            raise RuntimeError("mine")

        async with opened(path) as journal:
            journal.write(an_entry(1), fail)
            await save(journal, an_entry(2))
            await asyncio.sleep(1)
        assert reported == ["mine"]

    clock.run(main())


def test_a_mistake_on_the_writer_thread_leaves_nobody_waiting(path: Path) -> None:
    async def main() -> None:
        async with opened(path) as journal:
            assert await look_up(journal, ["not bytes", 3.5j]) == {}  # type: ignore[list-item]
            assert await look_up(journal, [[]]) == {}  # type: ignore[list-item]
            await save(journal, an_entry(1))
            assert journal.statistics().rows_written == 1

    clock.run(main())


def test_a_mistake_while_stopping_still_frees_the_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    async def main() -> None:
        journal = Journal(path, run="run")
        journal.start(asyncio.get_running_loop())
        monkeypatch.setattr(journal._writer, "_save_rows", fail)
        await journal.aclose()
        await Journal(path, run="run").aclose()

    clock.run(main())


def test_a_loop_that_closes_early_loses_callbacks_but_no_rows(path: Path) -> None:
    async def main() -> None:
        journal = Journal(path, run="run")
        journal.start(asyncio.get_running_loop())
        for number in range(100):
            journal.write(an_entry(number), lambda _: None)

    asyncio.run(main())
    for thread in threading.enumerate():
        assert thread is threading.main_thread() or thread.daemon
    deadline = time.monotonic() + 20
    while len(rows_of(path)) < 100:
        assert time.monotonic() < deadline


def test_a_saturated_loop_does_not_starve_the_writer(path: Path) -> None:
    """Without `_yield_gil`, one commit beside such a loop took seconds. Real time is the subject."""

    async def main() -> None:
        async with opened(path) as journal:
            saved = asyncio.get_running_loop().create_future()
            journal.write(an_entry(1), saved.set_result)
            deadline = time.monotonic() + 20
            while not saved.done():
                round_end = time.monotonic() + 0.001
                while time.monotonic() < round_end:
                    pass
                assert time.monotonic() < deadline
                await asyncio.sleep(0)

    asyncio.run(main())


def test_a_journal_must_be_open_to_be_used(path: Path) -> None:
    async def main() -> None:
        journal = Journal(path, run="run")
        with pytest.raises(JournalError, match="open and started"):
            journal.write(an_entry(), lambda _: None)
        await journal.aclose()
        with pytest.raises(JournalError, match="started once"):
            journal.start(asyncio.get_running_loop())

    clock.run(main())


# -- sharing the file --


def test_two_runs_may_share_a_journal(path: Path) -> None:
    async def main() -> None:
        async with opened(path, run="a") as first, opened(path, run="b") as second:
            await asyncio.gather(
                save(first, *[an_entry(number, run="a") for number in range(300)]),
                save(second, *[an_entry(number, run="b") for number in range(300, 600)]),
            )
            assert len(await look_up(first, [key_of(number) for number in range(600)])) == 600

    clock.run(main())


def test_exclusive_locking_needs_no_shared_memory(path: Path) -> None:
    async def main() -> None:
        async with opened(path, exclusive=True) as journal:
            await save(journal, an_entry(1))
            assert not path.with_name(path.name + "-shm").exists()
            assert len(await look_up(journal, [key_of(1)])) == 1

    clock.run(main())


def test_a_damaged_journal_is_refused_as_such(tmp_path: Path) -> None:
    path = tmp_path / "j.db"

    async def write() -> None:
        async with rf.RewardAgent(lambda solution_str: 1.0, journal=path) as agent:
            await agent.submit(rf.Rollout(group_id=str(i), response="x" * 500) for i in range(200)).all()

    asyncio.run(write())
    data = bytearray(path.read_bytes())
    data[4096:] = bytes(byte ^ 0x5A for byte in data[4096:])
    path.write_bytes(data)
    with pytest.raises(rf.JournalError, match="cannot use the journal"):
        Journal(path, run="default")
