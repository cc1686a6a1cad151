"""Runs that never reach the target count, and runs are compared with the synchronous one of the same seed."""

from __future__ import annotations

import math
from dataclasses import replace

from rewardflow.bench.benchmark_row import BenchmarkRow
from rewardflow.bench.learning.learning_summary import LearningFigures, summary_rows
from rewardflow.cli.bench import holds

GOOD = LearningFigures(
    task="copy",
    schedule="synchronous",
    correction="ppo",
    seed=0,
    steps=180,
    exact=0.98,
    final_reward=0.99,
    seconds=40.0,
    reached_step=100,
    reached_s=30.0,
)


def runs(schedule: str, *steps: int | None) -> list[LearningFigures]:
    return [
        replace(
            GOOD, schedule=schedule, seed=seed, reached_step=reached, reached_s=None if reached is None else reached / 5
        )
        for seed, reached in enumerate(steps)
    ]


def row(figures: list[LearningFigures], ending: str) -> BenchmarkRow:
    (found,) = [row for row in summary_rows(figures, baseline="synchronous") if row.name.endswith(ending)]
    return found


def test_one_more_miss_than_synchronous_is_allowed_and_two_are_not() -> None:
    synchronous, what = runs("synchronous", 100, 100, None), "copy, pipeline, ppo: missed the target, of 3 runs"
    assert holds(row([*synchronous, *runs("pipeline", None, None, 100)], what))
    missed = row([*synchronous, *runs("pipeline", None, None, None)], what)
    assert (missed.value, holds(missed)) == (3, False)


def test_steps_are_compared_by_pairs_and_a_run_that_never_got_there_took_for_ever() -> None:
    figures = [*runs("synchronous", 100, 50, 200), *runs("one_step", 110, None, 200)]
    compared = row(figures, "copy, one_step, ppo: steps to it against synchronous, median of pairs")
    assert (compared.value, holds(compared)) == (1.1, True)
    assert row(figures, "copy, one_step, ppo: steps to it, worst").value == math.inf
    assert row(figures, "copy, one_step, ppo: seconds to it against synchronous, worst").value == math.inf


def test_seconds_and_final_rewards_have_a_median_and_a_worst_case() -> None:
    figures = [replace(one, final_reward=0.9 + one.seed / 100) for one in runs("synchronous", 100, 150, 50)]
    assert row(figures, "seconds to it, median").value == 20.0
    assert row(figures, "seconds to it, worst").value == 30.0
    assert row(figures, "final reward, median").value == 0.91
    assert row(figures, "final reward, worst").value == 0.9
    assert row([*figures, *runs("synchronous", None)], "seconds to it, worst").value == math.inf


def test_a_run_under_another_schedule_takes_as_many_steps_and_its_own_seconds() -> None:
    (reached,), (missed,) = runs("synchronous", 100), runs("synchronous", None)
    assert reached.under("pipeline", 0.1) == replace(reached, schedule="pipeline", reached_s=10.0)
    assert missed.under("pipeline", 0.1) == replace(missed, schedule="pipeline")


def test_without_the_synchronous_runs_nothing_is_compared() -> None:
    names = [row.name for row in summary_rows(runs("one_step", 100), baseline="synchronous")]
    assert not any("against" in name for name in names)
