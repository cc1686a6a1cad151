"""The scenario of the same run twice: a second process opens the journal of a run that is under way.

Always true: the server answers honestly, so a rollout that is asked about twice was paid for twice.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from rewardflow.bench.chaos.hostile_server import HostileServer
from rewardflow.bench.chaos.killed_scoring import options_of
from rewardflow.bench.chaos.scenario import Scenario, Tried, in_real_time
from rewardflow.bench.chaos.scoring_process import Order, scoring_process
from rewardflow.bench.chaos.truth_check import check_verdicts

_COUNT = 800
_SLOTS = 4
_CALL_S = 0.02


async def two_at_once(seed: int, folder: Path, *, count: int = _COUNT) -> Tried:
    """Starts the same run a second time while the first one scores."""
    async with HostileServer(seed=seed, delay_s=_CALL_S) as server:
        order = Order(base_url=server.base_url, count=count, options=options_of(folder, _SLOTS))
        async with scoring_process(order) as first, asyncio.TaskGroup() as tasks:
            running = tasks.create_task(first.wait())
            await server.wait_for_requests(random.Random(seed).randrange(1, 20))
            async with scoring_process(order) as second:
                refused = await second.wait()
            was_running = not running.done()
            reached = await running
    complaints = [] if reached.error == "" else [f"the first run ended with {reached.error}: {reached.message}"]
    if was_running and not refused.error:
        complaints.append("the second run was not refused")
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
