"""What people see while an agent works: plain lines without a terminal, a live picture on one."""

from __future__ import annotations

import asyncio
import io
import random

from rich.console import Console

from rewardflow import clock
from rewardflow.cli.agent_view import AgentView
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.simulated_service import SimulatedService
from rewardflow.types import Reward, Rollout

NUM_ANSWERS = 1500
OUTAGE_S = (3.0, 12.0)


class FlakyJudge:
    """Behind a rate limit, at times without an answer, and down for a while."""

    def __init__(self) -> None:
        self._service = SimulatedService(rpm=250 * 60, burst=10, latency_s=0.2, rejection_latency_s=0.03)
        self._rng = random.Random(0)
        self._began_s: float | None = None

    async def compute_score(self, rollout: Rollout) -> Reward:
        now_s = asyncio.get_running_loop().time()
        self._began_s = now_s if self._began_s is None else self._began_s
        self._service.is_down = OUTAGE_S[0] <= now_s - self._began_s < OUTAGE_S[1]
        await self._service.call()
        if self._rng.random() < 0.01:
            await asyncio.sleep(100.0)
        return Reward(value=1.0, cost_usd=0.001)


def watched(console: Console) -> float:
    """Scores all answers on the clock that jumps, and returns how long that took."""

    async def play() -> float:
        loop = asyncio.get_running_loop()
        rollouts = [Rollout(group_id=str(i), response="42") for i in range(NUM_ANSWERS)]
        async with RewardAgent(FlakyJudge(), max_concurrency=64, timeout_s=1.5, max_attempts=5) as agent:
            began_s = loop.time()
            async with AgentView(agent, NUM_ANSWERS, console).shown():
                await agent.submit(rollouts).all()
            return loop.time() - began_s

    return clock.run(play())


def test_without_a_terminal_there_is_a_plain_line_every_few_seconds() -> None:
    file = io.StringIO()
    elapsed_s = watched(Console(file=file, width=60))
    lines = file.getvalue().splitlines()
    assert len(lines) == int(elapsed_s / 3)
    for line in lines:
        for word in ("of 1,500 done", "failed", "in flight", "waiting", "at once", "retries", "$", "left", "waits for"):
            assert word in line
    assert "\x1b" not in file.getvalue()


def test_on_a_terminal_there_is_a_live_picture_that_says_what_it_waits_for() -> None:
    file = io.StringIO()
    watched(Console(file=file, width=100, force_terminal=True, legacy_windows=False))
    shown = file.getvalue()
    for word in ("of 1,500", "verdicts a second", "█", "a minute (learnt", "the service to come back", "the last"):
        assert word in shown
    assert shown.rstrip().endswith("\x1b[2K")  # it leaves nothing behind
