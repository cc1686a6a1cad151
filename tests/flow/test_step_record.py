"""The report of a step accounts for its time, calls and tokens."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from flow.fake_run import FakeRun, judge_of

from rewardflow.errors import ServiceError
from rewardflow.flow.fakes import FakeGenerator
from rewardflow.flow.records import Boundary
from rewardflow.flow.schedule import Schedule


def test_time_is_accounted_for_to_the_last_second() -> None:
    for stream in ("batch", "mini_batch", "micro_batch"):
        run = FakeRun(Schedule(groups_per_step=8, mini_batches=2, stream=stream, max_staleness=1), judge_of(2)).run()
        for report in run.reports:
            assert report.usage.wall_s == pytest.approx(report.duration_s)
            line = report.to_json()
            assert line["exposed_s"] + sum(line["busy_s"].values()) <= report.duration_s + 1e-6
            assert line["source"] == "train"


def test_a_step_is_reported_before_its_boundary_whose_time_is_the_next_ones() -> None:
    run = FakeRun(Schedule(groups_per_step=4), judge_of(0))
    reported = []

    async def wait(boundary: Boundary) -> None:
        reported.append(len(run.reports))
        await asyncio.sleep(1000.0)

    run.at_boundary = wait
    run.run(steps=3)
    assert reported == [1, 2, 3]
    assert [report.usage.idle_s.get("checkpoint", 0.0) for report in run.reports] == [0.0, 1000.0, 1000.0]
    assert all(report.usage.wall_s == pytest.approx(report.duration_s) for report in run.reports)


def test_a_separate_trainer_that_waits_to_publish_is_not_busy() -> None:
    schedule = Schedule(groups_per_step=4, max_staleness=1, placement="separate")
    run = FakeRun(schedule, judge_of(0), generator=FakeGenerator(rollout_s=10.0)).run(steps=3)
    assert sum(report.usage.busy_s.get("publish", 0.0) for report in run.reports) == 0.0


@pytest.mark.parametrize("placement", ["colocated", "separate"])
def test_tokens_a_second_are_those_of_the_time_that_generating_took(placement: Any) -> None:
    schedule = Schedule(groups_per_step=4, placement=placement)
    for report in FakeRun(schedule, judge_of(0)).run(steps=3).reports:
        assert report.generated_tokens_per_s == pytest.approx(4 / 0.1)  # tokens and seconds of a rollout of the fake


def test_calls_and_retries_of_the_steps_add_up_to_those_of_the_run() -> None:
    attempts: Counter[str] = Counter()

    async def once_more(solution_str: str) -> float:
        attempts[solution_str] += 1
        if attempts[solution_str] == 1 and solution_str.endswith(".0"):
            raise ServiceError("busy")
        return 1.0

    run = FakeRun(Schedule(groups_per_step=4, max_staleness=1), once_more).run(steps=3, max_attempts=3)
    assert sum(report.num_calls for report in run.reports) == attempts.total() == 3 * 20
    assert sum(report.num_retries for report in run.reports) == 3 * 4
