"""The scenarios of kills: a scoring process dies by `kill -9` at random moments, and starts again on its journal.

Always true: the campaign kills a process only after requests of that process have arrived, so every life does some
work.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardflow.bench.chaos.hostile_server import MISBEHAVIOURS, HostileServer
from rewardflow.bench.chaos.judge_setup import mixture
from rewardflow.bench.chaos.scenario import Scenario, Tried, in_real_time
from rewardflow.bench.chaos.scoring_process import Order, Reached, ScoringProcess, scoring_process
from rewardflow.bench.chaos.truth_check import check_verdicts

_QUICK_FAULTS = tuple(one for one in MISBEHAVIOURS if one.weight == 1.0)  # the others hold a slot until the timeout
_NUM_KILLS = 6
_LONGEST_PAUSE_S = 0.03
_CALL_S = 0.02


@dataclass(frozen=True, slots=True)
class _Lives:
    """What the last life reached, and how many lives were killed before it."""

    reached: Reached
    num_kills: int


def options_of(folder: Path, slots: int, **fields: Any) -> dict[str, Any]:
    """Returns the agent's options for a scoring process."""
    return {
        "journal": str(folder / "journal.db"),
        "max_concurrency": slots,
        "max_attempts": 3,
        "timeout_s": 10.0,
        "backoff_s": 0.005,
        "max_backoff_s": 0.05,
        "retry_budget": 10.0,
        "outage_share": None,
        "rpm": None,
        "tpm": None,
    } | fields


async def live_until_done(
    server: HostileServer, order: Order, chance: random.Random, *, max_kills: int = _NUM_KILLS
) -> _Lives:
    """Starts the order again and again, kills it some times, and lets the last life finish."""
    for num_kills in range(max_kills):
        async with scoring_process(order) as process:
            goal = server.num_requests + chance.randrange(1, max(order.count // 4, 2))
            reached = await _killed_at(process, server, goal, chance.uniform(0.0, _LONGEST_PAUSE_S))
        if reached is not None:
            return _Lives(reached, num_kills)
    async with scoring_process(order) as process:
        return _Lives(await process.wait(), max_kills)


async def _killed_at(process: ScoringProcess, server: HostileServer, goal: int, pause_s: float) -> Reached | None:
    """Kills the process soon after so many requests. Returns what it reached if it ends before."""

    async def kill() -> None:
        await server.wait_for_requests(goal)
        await asyncio.sleep(pause_s)
        process.kill()

    async with asyncio.TaskGroup() as tasks:
        killing = tasks.create_task(kill())
        reached = await process.wait()
        killing.cancel()
    return reached if reached.verdicts or reached.error else None


async def kills(seed: int, folder: Path) -> Tried:
    """Kills without a cap: no verdict is lost or changed, and only calls in flight are paid twice."""
    chance = random.Random(seed)
    slots, count = chance.choice(((4, 150), (16, 300), (64, 500)))
    choose = mixture(seed, _QUICK_FAULTS, honest_share=0.8)
    async with HostileServer(seed=seed, choose=choose, delay_s=_CALL_S) as server:
        lives = await live_until_done(
            server, Order(base_url=server.base_url, count=count, options=options_of(folder, slots)), chance
        )
    complaints = (
        [f"the last life ended with {lives.reached.error}: {lives.reached.message}"] if lives.reached.error else []
    )
    complaints += check_verdicts(server, count, lives.reached.verdicts, may_fail=True)
    repeated = sum(max(told.num_told - 1, 0) for told in server.told.values())
    allowed = 2 * slots * lives.num_kills  # the calls in flight, and those whose commit had not ended
    if repeated > allowed:
        complaints.append(f"{repeated} scores were paid for again after {lives.num_kills} kills with {slots} slots")
    note = f"{lives.num_kills} kills, {slots} slots, {repeated} of {count} asked again"
    return Tried(count, tuple(complaints), note)


async def kills_with_cap(seed: int, folder: Path) -> Tried:
    """Kills with a cap: what the server charges over all lives stays below the cap."""
    chance = random.Random(seed)
    slots, count = chance.choice(((4, 150), (16, 300), (64, 500)))
    choose = mixture(seed, _QUICK_FAULTS, honest_share=0.8)
    cap_usd = round(count * chance.uniform(0.02, 0.12), 2)  # about 0.06 USD a call
    async with HostileServer(seed=seed, choose=choose, delay_s=_CALL_S) as server:
        options = options_of(folder, slots, max_cost_usd=cap_usd)
        lives = await live_until_done(server, Order(base_url=server.base_url, count=count, options=options), chance)
    complaints = []
    if lives.reached.error not in ("", "BudgetExhausted"):
        complaints.append(f"the last life ended with {lives.reached.error}: {lives.reached.message}")
    if server.charged_usd > cap_usd:
        complaints.append(f"{server.charged_usd:.2f} USD were charged, the cap is {cap_usd:.2f} USD, {slots} slots")
    complaints += check_verdicts(server, count, lives.reached.verdicts, may_fail=True)
    note = f"{lives.num_kills} kills, {slots} slots, {server.charged_usd:.2f} of {cap_usd:.2f} USD charged"
    return Tried(count, tuple(complaints), note)


KILLS = Scenario(
    name="kills",
    promise="after kill -9 every verdict is there and true; only calls in flight are paid for again",
    unit="rollouts",
    seconds=14.0,
    trial=in_real_time(kills),
)
KILLS_WITH_CAP = Scenario(
    name="kills-with-cap",
    promise="the cap holds over all lives of a run that is killed",
    unit="rollouts",
    seconds=14.0,
    trial=in_real_time(kills_with_cap),
)
