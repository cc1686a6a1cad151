"""The benchmark of learning at tiny sizes; the figures themselves are measured by hand, not by tests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rewardflow import clock
from rewardflow.bench.learning import (
    DelayedRule,
    LearningFigures,
    copying_settings,
    measure,
    report_of,
    rows_of,
    run_learning_benchmarks,
)
from rewardflow.bench.schedules import SCHEDULES
from rewardflow.cli.bench import holds
from rewardflow.errors import InvalidInput
from rewardflow.reward.agent import RewardAgent
from rewardflow.types import Reward, Rollout

GOOD = LearningFigures(schedule="synchronous", seed=0, steps=240, exact=0.98, final_reward=0.99, seconds=40.0)
BAD = replace(GOOD, schedule="pipeline", exact=0.8, final_reward=0.93)


def rollouts(*responses: str) -> list[Rollout]:
    size = len(responses)
    return [
        Rollout(group_id="0", index=i, group_size=size, response=response, ground_truth="407")
        for i, response in enumerate(responses)
    ]


def judged(seed: int, *responses: str) -> tuple[list[Reward], list[int]]:
    """The verdicts in their places, and the places in the order in which the verdicts came."""
    order: list[int] = []

    class Noting(DelayedRule):
        async def compute_score(self, rollout: Rollout) -> Reward:
            reward = await DelayedRule.compute_score(self, rollout)
            order.append(rollout.index)
            return reward

    async def main() -> list[Reward]:
        async with RewardAgent(Noting(seed=seed), max_concurrency=64) as agent:
            (group,) = await agent.submit(rollouts(*responses)).all()
        return list(group.rewards)

    return clock.run(main()), order


def test_a_run_reports_how_much_was_right_and_how_it_was_rewarded() -> None:
    figures = measure("pipeline_one_step", seed=3, steps=2, groups_per_step=4)
    assert (figures.schedule, figures.seed, figures.steps) == ("pipeline_one_step", 3, 2)
    assert 0.0 <= figures.exact <= figures.final_reward < 0.5
    assert figures.seconds > 0


def test_runs_differ_in_schedule_and_seed_alone() -> None:
    settings = [copying_settings(schedule, seed=0, steps=9) for schedule in SCHEDULES]
    assert len({(one.schedule.stream, one.schedule.max_staleness) for one in settings}) == len(SCHEDULES)
    plain = [replace(one, schedule=one.schedule.changed(stream="batch", max_staleness=0)) for one in settings]
    assert all(one == plain[0] for one in plain)
    assert replace(copying_settings("pipeline", seed=1, steps=9), seed=0) == settings[list(SCHEDULES).index("pipeline")]


def test_the_rule_grades_by_places_and_tells_whether_all_was_right() -> None:
    rewards, _ = judged(0, "407", "417", "4070", "")
    assert [reward.value for reward in rewards] == pytest.approx([1.0, 2 / 3, 3 / 4, 0.0])
    assert [reward.components["exact"] for reward in rewards] == [1.0, 0.0, 0.0, 0.0]


def test_verdicts_come_in_an_order_that_the_seed_fixes() -> None:
    orders = [judged(seed, *["407"] * 16)[1] for seed in (0, 0, 1)]
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == list(range(16))
    assert len({tuple(range(16)), *map(tuple, orders)}) == 3


def test_rows_say_what_is_promised_and_what_was_lost_in_the_mean() -> None:
    second = replace(BAD, seed=1, final_reward=0.99)
    rows = list(rows_of([GOOD, BAD, second]))
    exact = [row for row in rows if "right" in row.name]
    assert [holds(row) for row in exact] == [True, False, False]
    (lost,) = [row for row in rows if "lost" in row.name]
    assert lost.value == pytest.approx(0.03)
    assert holds(lost) is False


def test_the_report_has_the_runs_and_the_rows() -> None:
    report = report_of(iter([GOOD, BAD]))
    assert report["learning"][1] == {
        "schedule": "pipeline",
        "seed": 0,
        "steps": 240,
        "exact": 0.8,
        "final_reward": 0.93,
        "seconds": 40.0,
    }
    assert len(report["rows"]) == 5


def test_no_seeds_are_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one seed"):
        next(run_learning_benchmarks(seeds=()))
