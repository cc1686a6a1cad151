"""The scenarios of a disk that fails: it fills up, changes bytes, or loses the journal under the run.

Always true: a full disk is a limit on the size of files, set in the scoring process alone, so it needs no privileges.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from rewardflow.bench.chaos.hostile_server import HostileServer
from rewardflow.bench.chaos.killed_scoring import options_of
from rewardflow.bench.chaos.scenario import Scenario, Tried, in_real_time
from rewardflow.bench.chaos.scoring_process import Order, Reached, scoring_process
from rewardflow.bench.chaos.truth_check import check_verdicts
from rewardflow.errors import JournalError
from rewardflow.reward.journal.repair import repair_journal

_COUNT = 400
_SLOTS = 16
_CALL_S = 0.01
_VALUE = re.compile(r'"value":\s*(\d+\.\d+)')
_JOURNAL_ERRORS = frozenset({"JournalError", *(one.__name__ for one in JournalError.__subclasses__())})


async def _life(server: HostileServer, folder: Path, max_file_bytes: int | None = None) -> Reached:
    order = Order(
        base_url=server.base_url, count=_COUNT, options=options_of(folder, _SLOTS), max_file_bytes=max_file_bytes
    )
    async with scoring_process(order) as process:
        return await process.wait()


async def full_disk(seed: int, folder: Path) -> Tried:
    """Lets the disk fill up at a random moment, then scores again with enough space."""
    limit = random.Random(seed).randrange(60_000, 900_000)
    async with HostileServer(seed=seed, delay_s=_CALL_S) as server:
        first = await _life(server, folder, max_file_bytes=limit)
        paid = [number for number, told in server.told.items() if told.num_told]
        second = await _life(server, folder)
    complaints = []
    if first.error not in ("", "JournalWriteFailed"):
        complaints.append(f"a full disk ended in {first.error or 'no output'}: {first.message}")
    lost = [number for number in paid if number not in first.verdicts or not first.verdicts[number].is_scored]
    if len(lost) > _SLOTS:  # the calls in flight when the agent stopped
        complaints.append(f"{len(lost)} of {len(paid)} paid verdicts were not handed over at {limit} bytes")
    if first.error and len(paid) == _COUNT:
        complaints.append("the agent went on sending after the disk was full")
    complaints += check_verdicts(server, _COUNT, second.verdicts)
    complaints += [f"the life with enough space ended with {second.error}: {second.message}"] if second.error else []
    note = f"full at {limit:,} bytes, {len(paid)} paid, {len(lost)} of them lost, {server.num_requests} requests in all"
    return Tried(_COUNT, tuple(complaints), note)


async def changed_digits(seed: int, folder: Path) -> Tried:
    """Changes digits of stored scores behind the journal's back, then scores again."""
    chance = random.Random(seed)
    async with HostileServer(seed=seed) as server:
        await _life(server, folder)
        num_before = server.num_requests
        num_changed = _change_scores(folder / "journal.db", chance, chance.randrange(1, 40))
        second = await _life(server, folder)
    num_again = server.num_requests - num_before
    complaints = list(check_verdicts(server, _COUNT, second.verdicts))
    if second.error:
        complaints.append(f"the second life ended with {second.error}: {second.message}")
    if num_again > num_changed:
        complaints.append(f"{num_changed} broken rows made {num_again} rollouts be asked about again")
    return Tried(_COUNT, tuple(complaints), f"{num_changed} rows changed, {num_again} asked again")


def _change_scores(journal: Path, chance: random.Random, count: int) -> int:
    """Changes one digit of the stored score in some rows, and nothing else. Returns how many rows were changed."""
    database = sqlite3.connect(journal)
    with contextlib.closing(database), database:
        rows = database.execute("SELECT id, verdict FROM verdicts WHERE value IS NOT NULL").fetchall()
        chosen = chance.sample(rows, min(count, len(rows)))
        changed = [(_with_other_digit(verdict, chance), row) for row, verdict in chosen]
        database.executemany("UPDATE verdicts SET verdict = ? WHERE id = ?", changed)
    return len(chosen)


def _with_other_digit(verdict: str, chance: random.Random) -> str:
    digits = _VALUE.search(verdict)
    if digits is None:
        raise ValueError(f"a stored verdict must hold a value, got {verdict!r:.200}")
    place = chance.choice([at for at in range(*digits.span(1)) if verdict[at].isdigit()])
    other = chance.choice([digit for digit in "0123456789" if digit != verdict[place]])
    return verdict[:place] + other + verdict[place + 1 :]


async def changed_bytes(seed: int, folder: Path) -> Tried:
    """Changes random bytes of the journal, repairs a copy, and scores again. An unreadable one is refused by name."""
    chance = random.Random(seed)
    async with HostileServer(seed=seed) as server:
        await _life(server, folder)
        num_changed = chance.randrange(1, 20)
        _change_bytes(folder / "journal.db", chance, num_changed)
        complaints = list(_check_repair(folder / "journal.db"))
        second = await _life(server, folder)
    if second.error in _JOURNAL_ERRORS:
        return Tried(_COUNT, tuple(complaints), f"{num_changed} bytes changed, refused with {second.error}")
    complaints += check_verdicts(server, _COUNT, second.verdicts)
    if second.error:
        complaints.append(f"the second life ended with {second.error}: {second.message}")
    return Tried(_COUNT, tuple(complaints), f"{num_changed} bytes changed, {server.num_requests - _COUNT} asked again")


def _check_repair(journal: Path) -> Iterator[str]:
    """Repairs a copy of the journal; complains if a row is neither kept nor counted as lost."""
    copy = journal.with_name("repaired.db")
    copy.write_bytes(journal.read_bytes())
    try:
        result = repair_journal(copy)
    except JournalError:  # not even its schema can be read
        return
    num_counted = result.rows_kept + result.costs_kept + result.rows_lost
    if num_counted != _COUNT:
        yield f"a repair counted {num_counted} of {_COUNT} rows"


def _change_bytes(file: Path, chance: random.Random, count: int) -> None:
    data = bytearray(file.read_bytes())
    for _ in range(count):
        data[chance.randrange(100, len(data))] ^= 1 << chance.randrange(8)  # the header of the file stays
    file.write_bytes(data)


async def lost_journal(seed: int, folder: Path) -> Tried:
    """Deletes or replaces the journal while a run writes to it. The run notices, and hands over what it has."""
    chance = random.Random(seed)
    async with HostileServer(seed=seed, delay_s=_CALL_S) as server:
        order = Order(base_url=server.base_url, count=_COUNT, options=options_of(folder, _SLOTS))
        async with scoring_process(order) as process, asyncio.TaskGroup() as tasks:
            life = tasks.create_task(process.wait())
            await server.wait_for_requests(chance.randrange(40, 200))
            how = _lose(folder / "journal.db", chance)
            reached = await life
    complaints = []
    if reached.error not in _JOURNAL_ERRORS:
        complaints.append(f"nobody noticed that the journal was {how}: the run ended with {reached.error or 'success'}")
    paid = [number for number, told in server.told.items() if told.num_told]
    lost = [number for number in paid if number not in reached.verdicts or not reached.verdicts[number].is_scored]
    if len(lost) > _SLOTS:
        complaints.append(f"{len(lost)} of {len(paid)} paid verdicts were not handed over, the journal was {how}")
    complaints += (
        one for one in check_verdicts(server, _COUNT, reached.verdicts, may_fail=True) if "no verdict" not in one
    )
    return Tried(_COUNT, tuple(complaints), f"{how} after {len(paid)} verdicts, {reached.error or 'not noticed'}")


def _lose(journal: Path, chance: random.Random) -> str:
    """Deletes or replaces the journal, and returns which of them."""
    how = chance.choice(("deleted", "replaced"))
    if how == "replaced":
        other = journal.with_name("other.db")
        other.write_bytes(journal.read_bytes())
        os.replace(other, journal)
    else:
        journal.unlink()
    return how


def _scenarios() -> Iterator[Scenario]:
    yield Scenario(
        name="full-disk",
        promise="a full disk stops the run; the paid verdicts are handed over, and nothing on disk is asked again",
        unit="rollouts",
        seconds=5.0,
        trial=in_real_time(full_disk),
    )
    yield Scenario(
        name="changed-digits",
        promise="a changed score in the journal is not believed, and a broken row costs that row only",
        unit="rollouts",
        seconds=4.0,
        trial=in_real_time(changed_digits),
    )
    yield Scenario(
        name="changed-bytes",
        promise="a damaged journal gives true scores or is refused by name, and a repair counts every row",
        unit="rollouts",
        seconds=4.0,
        trial=in_real_time(changed_bytes),
    )
    yield Scenario(
        name="lost-journal",
        promise="a journal that is deleted or replaced under a run is noticed; the paid verdicts are handed over",
        unit="rollouts",
        seconds=4.0,
        trial=in_real_time(lost_journal),
    )


FULL_DISK, CHANGED_DIGITS, CHANGED_BYTES, LOST_JOURNAL = _scenarios()
