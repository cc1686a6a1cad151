"""The scenario of the same run twice: a second process opens the journal of a run that is under way.

Always true: the server answers honestly, so a rollout that is asked about twice was paid for twice.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from rewardflow.bench.chaos.exchange import Carries, Exchange, Misbehaviour
from rewardflow.bench.chaos.hostile_server import HONEST, HostileServer
from rewardflow.bench.chaos.killed_scoring import options_of
from rewardflow.bench.chaos.scenario import Scenario, Tried, in_real_time
from rewardflow.bench.chaos.scoring_process import Order, scoring_process
from rewardflow.bench.chaos.truth_check import check_verdicts
from rewardflow.errors import JournalLocked

_COUNT = 800
_SLOTS = 4
_HELD_S = 300.0  # more than a process takes to start on a busy machine


async def two_at_once(seed: int, folder: Path, *, count: int = _COUNT) -> Tried:
    """Starts the same run a second time while the first one scores.

    The server holds back answers until the second run has ended, so that the first one is certainly under way.
    """
    may_answer = asyncio.Event()
    first_held = random.Random(seed).randrange(1, 20)

    async def answer_later(x: Exchange) -> None:
        await may_answer.wait()
        await HONEST.answer(x)

    held = Misbehaviour("held", Carries.TRUTH, answer_later)

    def choose(_rollout: int, call: int) -> Misbehaviour:
        if call > 0:
            may_answer.set()  # the second run asks again, so it was not refused and needs answers to end
        return HONEST if server.num_requests + 1 < first_held else held

    async with HostileServer(seed=seed, choose=choose) as server:
        order = Order(base_url=server.base_url, count=count, options=options_of(folder, _SLOTS, timeout_s=_HELD_S))
        async with scoring_process(order) as first, asyncio.TaskGroup() as tasks:
            running = tasks.create_task(first.wait())
            await server.wait_for_requests(first_held)
            async with scoring_process(order) as second:
                refused = await second.wait()
            may_answer.set()
            reached = await running
    complaints = [] if reached.error == "" else [f"the first run ended with {reached.error}: {reached.message}"]
    if refused.error != JournalLocked.__name__:
        complaints.append(f"the second run must be refused with JournalLocked, got {refused.error or 'verdicts'}")
    if server.num_requests > count:
        complaints.append(f"{server.num_requests - count} rollouts were paid for twice")
    complaints += check_verdicts(server, count, reached.verdicts)
    return Tried(count, tuple(complaints), f"the second run: {refused.error} {refused.message[:80]}")


TWO_AT_ONCE = Scenario(
    name="two-at-once",
    promise="the same run cannot be started twice on one journal, and pays for nothing twice",
    unit="rollouts",
    seconds=4.0,
    trial=in_real_time(two_at_once),
)
