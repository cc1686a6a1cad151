"""The loop with a shared agent in the place of its own, whose host dies while steps are open."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from killable_host import KillableHost

from rewardflow import clock
from rewardflow.flow.fakes import CentredScores, FakeGenerator, FakePrompts, FakeTrainer
from rewardflow.flow.flow_parts import FlowParts
from rewardflow.flow.reports import StepReport
from rewardflow.flow.run import Flow
from rewardflow.flow.schedule import Schedule
from rewardflow.reward.agent import RewardAgent
from rewardflow.types import Rollout

STEPS, GROUPS, GROUP_SIZE = 6, 4, 4


async def slow(rollout: Rollout) -> float:
    rng = random.Random(f"{rollout.step}{rollout.group_id}{rollout.index}")
    await asyncio.sleep(rng.uniform(0.1, 3.0))
    if rng.random() < 0.1:
        raise ValueError("no verdict")
    return rng.random()


async def steps_of(folder: Path, schedule: Schedule, *, deaths_s: list[float]) -> tuple[list[StepReport], set[str]]:
    """Train through a shared agent, and let its host die at these times."""
    reports: list[StepReport] = []
    trainer = FakeTrainer(forward_backward_s=0.05, log_probs_s=0.01, optim_s=0.3)
    make = lambda: RewardAgent(slow, serves_runs=True, max_concurrency=8, journal=folder / "run.db")  # noqa: E731
    async with KillableHost(make) as host, host.client("a") as agent, asyncio.TaskGroup() as tasks:
        parts = FlowParts(
            schedule=schedule,
            prompts=FakePrompts(),
            generator=FakeGenerator(rollout_s=0.1),
            agent=agent,
            trainer=trainer,
            advantages=CentredScores(),
            group_size=GROUP_SIZE,
            micro_batch_tokens=60,
        )
        training = tasks.create_task(Flow(parts, on_step=reports.append).run(steps=STEPS))
        for death_s in deaths_s:
            await asyncio.sleep(death_s)
            await host.kill()
            await asyncio.sleep(1.0)
            await host.start()
        await training
    return reports, {sample.rollout.response for batch in trainer.batches for sample in batch.samples}


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_a_flow_trains_on_the_same_rollouts_whether_or_not_the_host_of_its_agent_dies(
    tmp_path: Path, max_staleness: int
) -> None:
    schedule = Schedule(
        groups_per_step=GROUPS, mini_batches=2, stream="mini_batch", max_staleness=max_staleness, order="fixed"
    )
    (tmp_path / "calm").mkdir()
    (tmp_path / "deaths").mkdir()
    calm, trained = clock.run(steps_of(tmp_path / "calm", schedule, deaths_s=[]))
    deaths, trained_too = clock.run(steps_of(tmp_path / "deaths", schedule, deaths_s=[2.0, 3.0, 9.0]))
    assert len(calm) == len(deaths) == STEPS
    assert trained == trained_too
    assert [report.num_groups for report in calm] == [report.num_groups for report in deaths]
