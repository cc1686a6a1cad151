"""The planner beside real runs, at a size that takes seconds; how close it comes is measured and not tested here."""

from __future__ import annotations

import asyncio
import random
from statistics import fmean

import pytest
import torch

from rewardflow import clock
from rewardflow.bench.observed_run import ObservedRun, observe
from rewardflow.bench.plan_check import (
    CHECKED,
    CheckFigures,
    CheckSize,
    plan_of,
    report_of,
    rows_of,
    run_plan_benchmarks,
)
from rewardflow.flow.fakes import CentredScores, FakeGenerator, FakePrompts, FakeTrainer
from rewardflow.flow.flow_parts import FlowParts
from rewardflow.flow.schedule import Schedule
from rewardflow.plan.simulate import simulate
from rewardflow.reward.agent import RewardAgent
from rewardflow.types import Rollout

TINY = CheckSize(prompts=8, responses=3, mini_batches=2, steps=5, slots=4, scale=0.002, micro_batch_tokens=30, hidden=8)
VIRTUAL = CheckSize(prompts=64, responses=4, mini_batches=4, steps=7, slots=32)


class Delayed:
    def __init__(self) -> None:
        rng = random.Random(0)
        self._delays_s = [rng.uniform(1.0, 40.0) for _ in range(VIRTUAL.steps * 256)]

    def delay_s(self, rollout: Rollout) -> float:
        return self._delays_s[int(rollout.group_id) * 4 + rollout.index]

    async def compute_score(self, rollout: Rollout) -> float:
        await asyncio.sleep(self.delay_s(rollout))
        return 1.0


def observed(schedule: Schedule) -> ObservedRun:
    async def main() -> ObservedRun:
        reward = Delayed()
        async with RewardAgent(reward, max_concurrency=VIRTUAL.slots, timeout_s=None) as agent:
            parts = FlowParts(
                schedule=schedule,
                prompts=FakePrompts(),
                generator=FakeGenerator(rollout_s=0.2),
                agent=agent,
                trainer=FakeTrainer(log_probs_s=0.05, forward_backward_s=0.3, optim_s=1.0),
                advantages=CentredScores(),
                group_size=4,
                micro_batch_tokens=100,
            )
            return await observe(parts, steps=VIRTUAL.steps, delay_of=reward.delay_s)

    return clock.run(main())


def test_what_the_synchronous_run_says_predicts_all_three_within_2_percent_on_the_clock_that_jumps() -> None:
    synchronous = observed(Schedule(groups_per_step=64, mini_batches=4))
    latencies_s = [call.delay_s for step in synchronous.steps[1:-1] for call in step.calls]
    plan = plan_of(synchronous, latencies_s, VIRTUAL, 0)
    for name in CHECKED:
        real, planned = observed(plan.schedule(name)).reports, simulate(plan, name, steps=VIRTUAL.steps).reports
        real_s, planned_s = (fmean(one.duration_s for one in reports[2:-2]) for reports in (real, planned))
        assert planned_s == pytest.approx(real_s, rel=0.02), name


def test_real_runs_are_measured_and_planned() -> None:
    threads = torch.get_num_threads()
    try:
        figures = list(run_plan_benchmarks(size=TINY))
    finally:
        torch.set_num_threads(threads)
    assert [one.schedule for one in figures] == list(CHECKED)
    assert all(one.measured_s > 0 and one.predicted_s > 0 for one in figures)


def test_an_error_is_told_in_rows_and_in_json() -> None:
    figures = [CheckFigures(schedule="pipeline", measured_s=2.0, predicted_s=2.2, compute_s=1.0)]
    assert report_of(figures)["plan"][0]["error"] == pytest.approx(0.1)
    assert [row.value for row in rows_of(figures)] == pytest.approx([2.0, 10.0])
