"""The loop on a clock that jumps: every schedule, random delays and failures, hours in milliseconds."""

import asyncio
import itertools
import random
from collections import Counter
from typing import Any

import pytest
from flow.fake_run import SCHEDULES, FakeRun, Judge, judge_of
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardflow import clock
from rewardflow.errors import ServiceOutage
from rewardflow.flow.fakes import CentredScores, FakeGenerator, FakePrompts, FakeTrainer
from rewardflow.flow.flow_parts import FlowParts
from rewardflow.flow.records import Boundary
from rewardflow.flow.run import Flow
from rewardflow.flow.schedule import Schedule
from rewardflow.observe.events import DeviceWorked
from rewardflow.reward.agent import RewardAgent


@settings(max_examples=60)
@given(SCHEDULES, st.integers(0, 99), st.sampled_from([0.0, 0.3]), st.integers(1, 40))
def test_every_group_is_trained_or_dropped_once_and_never_stale_beyond_the_bound(
    schedule: Schedule, seed: int, failing: float, slots: int
) -> None:
    run = FakeRun(schedule, judge_of(seed, failing=failing), slots=slots).run(steps=5)
    assert [report.step for report in run.reports] == [0, 1, 2, 3, 4]
    assert run.generator.generated == [(step, max(0, step - schedule.max_staleness)) for step in range(5)]
    answers = run.trained()
    assert len(set(answers)) == len(answers)
    for report in run.reports:
        dropped = sum(report.dropped.values())
        empty = max(0, dropped - report.num_reserves_used)
        assert report.num_groups == schedule.groups_per_step - empty
        assert (report.staleness_max or 0) <= schedule.max_staleness
        assert len(report.updates) == schedule.mini_batches
    for batch in run.trainer.batches:
        for sample in batch.samples:
            assert sample.rollout.step == batch.step
            assert batch.step - (sample.rollout.policy_version or 0) <= schedule.max_staleness
    assert run.calls_left_out == 0


@settings(max_examples=30)
@given(SCHEDULES, st.integers(0, 99))
def test_the_shared_device_generates_everything_admitted_before_it_trains(schedule: Schedule, seed: int) -> None:
    run = FakeRun(schedule.changed(placement="colocated"), judge_of(seed)).run(steps=4)
    done = [(event.work, event.step) for event in run.events.of(DeviceWorked)]
    for step in range(4):
        first_update = done.index(("update", step))
        for later in range(step + 1, min(4, step + schedule.max_staleness + 1)):
            assert done.index(("generate", later)) < first_update
        for newest in range(step + schedule.max_staleness + 1, 4):
            assert done.index(("generate", newest)) > done.index(("publish", step))
    intervals = sorted((event.started_s, event.at_s) for event in run.events.of(DeviceWorked))
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(intervals))


@settings(max_examples=25)
@given(SCHEDULES, st.integers(0, 99), st.integers(100, 199), st.sampled_from([0.0, 0.3]))
def test_with_a_fixed_order_training_is_the_same_for_every_stream_and_whatever_the_delays(
    schedule: Schedule, one: int, other: int, failing: float
) -> None:
    def judge_with_delays(seed: int) -> Judge:
        scores = judge_of(7, failing=failing)

        async def compute_score(data_source: str, solution_str: str, ground_truth: str) -> float:
            await asyncio.sleep(random.Random(f"{seed} {solution_str}").uniform(0, 100))
            return await scores(data_source, solution_str, ground_truth)

        return compute_score

    def batches(stream: str, seed: int) -> list[Any]:
        value = schedule.changed(order="fixed", stream=stream, placement="colocated")
        run = FakeRun(value, judge_with_delays(seed), group_size=3).run(steps=3)
        return [
            (b.step, b.mini_batch, b.is_last, [(s.rollout.response, s.advantage, s.precomputed) for s in b.samples])
            for b in run.trainer.batches
        ]

    assert batches("batch", one) == batches("micro_batch", other) == batches("mini_batch", one)


def test_slowly_judged_prompts_are_trained_as_often_as_they_stand_in_the_data() -> None:
    for staleness in (0, 1, 3):
        schedule = Schedule(groups_per_step=8, mini_batches=2, stream="micro_batch", max_staleness=staleness)
        run = FakeRun(schedule, judge_of(1, slow=lambda number: number % 4 == 0), slots=16).run(steps=10)
        prompts = run.trained_prompts()
        assert prompts == Counter({str(number): 1 for number in range(80)})


@pytest.mark.parametrize("placement", ["colocated", "separate"])
def test_an_error_of_the_trainer_ends_the_run_and_leaves_no_call_out(placement: Any) -> None:
    class Broken(FakeTrainer):
        async def forward_backward(self, batch: Any) -> None:
            raise RuntimeError("out of memory")

    run = FakeRun(Schedule(groups_per_step=4, max_staleness=1, placement=placement), judge_of(0), trainer=Broken())
    with pytest.raises(RuntimeError, match="out of memory"):
        run.run(steps=3)


def test_a_service_that_stays_down_ends_the_run_with_the_agents_own_words() -> None:
    async def compute_score(data_source: str, solution_str: str, ground_truth: str) -> float:
        raise ConnectionError("refused")

    run = FakeRun(Schedule(groups_per_step=32), compute_score)
    with pytest.raises(ServiceOutage):
        run.run(steps=3, outage_give_up_s=60.0)


def test_a_cancelled_loop_ends_its_calls() -> None:
    async def main() -> int:
        schedule = Schedule(groups_per_step=4, max_staleness=1)
        async with RewardAgent(judge_of(0, slow=lambda _: True), max_concurrency=64, timeout_s=None) as agent:
            parts = FlowParts(
                schedule=schedule,
                prompts=FakePrompts(),
                generator=FakeGenerator(rollout_s=0.1),
                agent=agent,
                trainer=FakeTrainer(),
                advantages=CentredScores(),
                group_size=4,
            )
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(10):
                    await Flow(parts).run(steps=3)
            await asyncio.sleep(0)
            return agent.statistics().in_flight

    assert clock.run(main()) == 0


@settings(max_examples=25)
@given(SCHEDULES, st.integers(0, 99), st.integers(1, 4), st.sampled_from([0.0, 0.3]))
def test_a_run_that_goes_on_from_a_boundary_trains_what_an_undisturbed_one_would(
    schedule: Schedule, seed: int, stop_after: int, failing: float
) -> None:
    schedule = schedule.changed(order="fixed")
    judge = judge_of(seed, failing=failing)

    class Cut(Exception):
        """The machine died here."""

    def batches(run: FakeRun) -> list[Any]:
        return [
            (b.step, b.mini_batch, [(s.rollout.response, s.rollout.policy_version, s.advantage) for s in b.samples])
            for b in run.trainer.batches
        ]

    undisturbed = FakeRun(schedule, judge).run(steps=5)
    first, boundaries = FakeRun(schedule, judge), []

    async def cut(boundary: Boundary) -> None:
        boundaries.append(boundary)
        if boundary.next_step == stop_after:
            raise Cut

    first.at_boundary = cut
    with pytest.raises(Cut):
        first.run(steps=5)
    second = FakeRun(schedule, judge)
    second.prompts = first.prompts
    second.trainer.num_updates = stop_after
    second.start = boundaries[-1]
    second.run(steps=5)
    assert batches(first) + batches(second) == batches(undisturbed)
    assert first.prompts.num_made == undisturbed.prompts.num_made
