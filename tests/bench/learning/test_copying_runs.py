"""The benchmark of learning at tiny sizes; the figures themselves are measured by hand, not by tests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rewardflow import clock
from rewardflow.bench.learning import copying_runs
from rewardflow.bench.learning.copying_runs import (
    ONE_STEP,
    TASKS,
    DelayedRule,
    LearningTask,
    LearningVariant,
    copying_settings,
    measure,
    report_of,
    rows_of,
    run_learning_benchmarks,
    schedules_of,
    step_seconds,
    variants,
)
from rewardflow.bench.learning.corrections import CORRECTIONS, PLAIN
from rewardflow.data.generated_tasks import GeneratedTask
from rewardflow.errors import InvalidInput
from rewardflow.plan.named_schedules import SCHEDULES
from rewardflow.reward.agent import RewardAgent
from rewardflow.types import Reward, Rollout

COPY, LENGTHS = TASKS


def rollouts(*responses: str) -> list[Rollout]:
    size = len(responses)
    return [
        Rollout(group_id="0", index=i, group_size=size, response=response, ground_truth="407")
        for i, response in enumerate(responses)
    ]


def judged(seed: int, *responses: str, delay_a_character_s: float = 0.0) -> tuple[list[Reward], list[int]]:
    """The verdicts in their places, and the places in the order in which the verdicts came."""
    order: list[int] = []

    class Noting(DelayedRule):
        async def compute_score(self, rollout: Rollout) -> Reward:
            reward = await DelayedRule.compute_score(self, rollout)
            order.append(rollout.index)
            return reward

    rule = Noting(seed=seed, delay_a_character_s=delay_a_character_s)

    async def main() -> list[Reward]:
        async with RewardAgent(rule, max_concurrency=64) as agent:
            (group,) = await agent.submit(rollouts(*responses)).all()
        return list(group.rewards)

    return clock.run(main()), order


def test_a_run_reports_how_much_was_right_and_how_it_was_rewarded() -> None:
    variant = LearningVariant(schedule=ONE_STEP, correction=CORRECTIONS[1], engine="bfloat16")
    runs = measure(replace(LENGTHS, steps=2), variant, seeds=[3, 4], step_s=0.5, groups_per_step=4)
    assert [one.seed for one in runs] == [3, 4]
    for figures in runs:
        assert (figures.task, figures.steps) == ("lengths", 2)
        assert figures.label == f"{ONE_STEP}, decoupled, engine in bfloat16"
        assert 0.0 <= figures.exact <= figures.final_reward < 0.5
        assert figures.seconds > 0
        assert (figures.reached_step, figures.reached_s) == (None, None)


def test_in_the_second_task_answers_differ_in_length_and_longer_ones_take_longer() -> None:
    lengths = {len(GeneratedTask(task="copy_numbers", num_digits=4)[i].ground_truth) for i in range(50)}
    assert lengths == {1, 2, 3, 4}
    _, order = judged(0, "4" * 40, "4", "4" * 20, delay_a_character_s=LENGTHS.delay_a_character_s)
    assert order == [1, 2, 0]


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


def test_every_correction_is_tried_at_every_staleness_and_with_engines_that_round() -> None:
    every = list(variants())
    assert len(every) == len(set(map(repr, every)))
    assert every[0] == LearningVariant(schedule="synchronous")
    assert sorted({SCHEDULES[one.schedule][1] for one in every}) == [0, 1, 2, 4]
    for one in every[1:]:
        same = [other.correction for other in every if (other.schedule, other.engine) == (one.schedule, one.engine)]
        assert same == list(CORRECTIONS)
    assert [(one.schedule, one.correction, one.engine) for one in variants(quick=True)] == [
        ("synchronous", PLAIN, "float32"),
        (ONE_STEP, PLAIN, "float32"),
    ]


def test_a_quick_run_measures_both_tasks_with_all_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str, int]] = []

    def note(task: LearningTask, variant: LearningVariant, *, seeds: range, step_s: float) -> list[None]:
        asked.extend((task.name, variant.schedule, seed) for seed in seeds)
        return []

    monkeypatch.setattr(copying_runs, "measure", note)
    monkeypatch.setattr(copying_runs, "step_seconds", lambda task, schedule: 1.0)
    list(run_learning_benchmarks(quick=True, seeds=range(25)))
    assert len(asked) == len(set(asked)) == 2 * 2 * 25


def test_runs_without_a_correction_are_reported_under_every_schedule_of_their_staleness() -> None:
    assert schedules_of(LearningVariant(schedule="synchronous")) == ("synchronous", "pipeline", "stream_0")
    assert schedules_of(LearningVariant(schedule=ONE_STEP)) == (ONE_STEP, "one_step", "stream_1")
    assert schedules_of(LearningVariant(schedule=ONE_STEP, correction=CORRECTIONS[1])) == (ONE_STEP,)
    assert schedules_of(LearningVariant(schedule="synchronous", engine="bfloat16")) == ("synchronous",)


def test_a_step_is_timed_with_the_delays_of_the_judge() -> None:
    slow = LearningTask(name="slow", task="copy_digits", num_digits=1, steps=1, delay_a_character_s=0.2)
    assert step_seconds(slow, "synchronous", groups_per_step=4) > 0.2  # every first answer has a character


def test_the_report_has_the_runs_and_the_rows() -> None:
    synchronous = LearningVariant(schedule="synchronous")
    figures = measure(replace(COPY, steps=1), synchronous, seeds=[0], step_s=0.5, groups_per_step=4)
    report = report_of(iter(figures))
    assert report["learning"][0]["reached_step"] is None
    assert "copy, synchronous, ppo, seed 0: final reward, 0.9 never reached" in report["rows"][0]["name"]
    again = [*figures, *(one.under("pipeline", 0.25) for one in figures)]
    assert [row.name for row in rows_of(again) if "seed 0" in row.name] == [report["rows"][0]["name"]]


def test_no_seeds_are_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one seed"):
        next(run_learning_benchmarks(seeds=()))
