"""Groups are dropped, replaced from the reserve or given up, and each has one fate."""

import asyncio
from typing import Any

import pytest
from flow.fake_run import FakeRun, judge_of
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardflow.flow.fakes import FakeGenerator
from rewardflow.flow.schedule import Schedule


def test_a_group_with_too_few_verdicts_is_dropped_and_a_failed_rollout_stays_in_place() -> None:
    async def compute_score(data_source: str, solution_str: str, ground_truth: str) -> float:
        prompt, index = map(int, solution_str.split("."))
        if prompt == 1 or (prompt == 2 and index == 0):
            raise ValueError("the judge does not know")
        return float(index)

    run = FakeRun(Schedule(groups_per_step=4), compute_score, group_size=3).run(steps=1)
    report = run.reports[0]
    assert report.dropped == {"too_few_verdicts": 1}
    assert report.failed == {"user_error": 3, "cancelled": 1}  # the third call of group 1 no longer mattered
    assert report.num_groups == 3
    (batch,) = run.trainer.batches
    assert [s.rollout.response for s in batch.samples if not s.is_scored] == ["2.0"]
    assert {s.rollout.response: s.advantage for s in batch.samples}["2.0"] == 0.0
    assert {s.rollout.response: s.advantage for s in batch.samples}["2.1"] == -0.5


@pytest.mark.parametrize("order", ["completion", "fixed"])
def test_groups_with_equal_scores_are_filtered_and_refilled_from_the_reserve(order: Any) -> None:
    async def compute_score(data_source: str, solution_str: str, ground_truth: str) -> float:
        prompt, index = map(int, solution_str.split("."))
        await asyncio.sleep(prompt % 3)
        return 1.0 if prompt in (1, 2, 5) else float(index)

    schedule = Schedule(groups_per_step=4, refill=3, drop_equal_scores=True, order=order)
    run = FakeRun(schedule, compute_score).run(steps=1)
    report = run.reports[0]
    assert report.dropped == {"equal_scores": 3}
    assert (report.num_groups, report.num_reserves_used) == (4, 3)
    assert set(run.trained_prompts()) == {"0", "3", "4", "6"}


def test_the_other_calls_of_a_group_that_cannot_be_kept_are_cancelled() -> None:
    async def compute_score(data_source: str, solution_str: str, ground_truth: str) -> float:
        prompt, index = map(int, solution_str.split("."))
        if prompt == 1 and index < 3:
            raise ValueError("no verdict")
        await asyncio.sleep(1e6 if prompt == 1 else 1.0)
        return float(index)

    run = FakeRun(Schedule(groups_per_step=3), compute_score).run(steps=1)
    assert run.reports[0].dropped == {"too_few_verdicts": 1}
    assert run.reports[0].failed == {"user_error": 3, "cancelled": 1}
    assert run.reports[0].duration_s < 100


def test_a_straggler_is_given_up_after_its_time_and_the_rest_of_its_group_trains() -> None:
    async def compute_score(data_source: str, solution_str: str, ground_truth: str) -> float:
        prompt, index = map(int, solution_str.split("."))
        await asyncio.sleep(1e6 if (prompt, index) == (1, 2) else 1.0)
        return float(index)

    run = FakeRun(Schedule(groups_per_step=4, straggler_s=60.0), compute_score).run(steps=2)
    assert run.reports[0].failed == {"cancelled": 1}
    assert run.reports[0].num_groups == 4
    assert run.reports[0].duration_s < 70


def test_a_limit_on_stragglers_spares_calls_that_wait_in_the_queue() -> None:
    async def compute_score(data_source: str, solution_str: str, ground_truth: str) -> float:
        await asyncio.sleep(1.0)
        return float(solution_str)

    schedule = Schedule(groups_per_step=32, mini_batches=4, stream="mini_batch", straggler_s=10.0)
    run = FakeRun(schedule, compute_score, slots=1).run(steps=1)
    assert run.reports[0].failed == {}
    assert run.reports[0].num_groups == 32


@settings(max_examples=30)
@given(st.integers(0, 99), st.floats(1, 60), st.integers(1, 16))
def test_stragglers_and_rounds_of_reserves_together_give_every_group_one_fate(
    seed: int, limit_s: float, slots: int
) -> None:
    schedule = Schedule(groups_per_step=4, refill=1, refill_rounds=3, drop_equal_scores=True, straggler_s=limit_s)
    run = FakeRun(schedule, judge_of(seed, failing=0.4), slots=slots).run(steps=2)
    for report in run.reports:
        empty = max(0, sum(report.dropped.values()) - report.num_reserves_used)
        assert report.num_groups == 4 - empty


def test_verdicts_that_have_landed_hide_nothing() -> None:
    async def compute_score(data_source: str, solution_str: str, ground_truth: str) -> float:
        return float(solution_str)

    run = FakeRun(Schedule(groups_per_step=8), compute_score, generator=FakeGenerator(rollout_s=10.0)).run(steps=2)
    assert all(report.usage.hidden_s < 1e-6 for report in run.reports)
