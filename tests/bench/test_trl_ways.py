"""The figures of `rewardflow bench trl`; tests/on_trl runs the three ways."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rewardflow.bench.contender import ContenderFailed
from rewardflow.bench.contenders.judged_workload import FUNCTION, PLAIN, TRAINER, JudgedWorkload, score
from rewardflow.bench.trl_ways import TrlFigures, report_of, rows_of, run_trl_benchmark

RISING = [step / 100 for step in range(100)] + [1.0] * 20


def figures() -> TrlFigures:
    return TrlFigures(
        compute_s=0.4,
        step_s={PLAIN: 1.1, FUNCTION: 1.0, TRAINER: 0.5},
        rewards={FUNCTION: {0: RISING, 1: RISING, 2: [0.0] * 120}, TRAINER: {0: RISING, 1: RISING, 2: RISING}},
        versions={"trl": "1"},
    )


def test_seconds_to_the_target_are_the_steps_to_it_times_the_step_time() -> None:
    one = figures()
    assert one.steps_to_target(FUNCTION) == [96, 96, None]  # the mean of rewards 0.86 to 0.95 is above 0.9
    assert one.seconds_to_target(FUNCTION) == 96.0
    assert one.seconds_to_target(TRAINER) == 48.0


def test_a_target_that_most_seeds_missed_has_no_time() -> None:
    missed = TrlFigures(compute_s=1.0, step_s={FUNCTION: 1.0}, rewards={FUNCTION: {0: [0.0] * 20}}, versions={})
    assert missed.seconds_to_target(FUNCTION) is None


def test_our_trainer_is_measured_against_our_own_function() -> None:
    rows = {row.name: row for row in rows_of(figures())}
    ours = rows["step: rewardflow.adapters.trl.GRPOTrainer"]
    assert (ours.ratio, ours.bar, ours.bar_on) == (0.5, "<= 0.8", "ratio")
    assert report_of(figures())["steps_to_target"][TRAINER] == [96, 96, 96]


def test_the_judge_takes_1_to_40_scaled_seconds_and_as_long_for_every_way() -> None:
    ways = [JudgedWorkload(way=way, steps=2, scale=0.1, seed=3) for way in (PLAIN, TRAINER)]
    delays = [ways[0].delay_s(prompt, "123") for prompt in map(str, range(1000))]
    assert 0.1 <= min(delays) < 0.2
    assert 3.8 < max(delays) <= 4.0
    assert ways[0].delay_s("7=", "7") == ways[1].delay_s("7=", "7")
    assert ways[0].prompts() == ways[1].prompts()
    assert len(ways[0].prompts()) == 64
    assert score("123=", "12") == pytest.approx(2 / 3)
    assert score("123=", "1239") == 1.0


def test_an_interpreter_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(ContenderFailed, match="cannot be run"):
        run_trl_benchmark(python=str(tmp_path / "python"), quick=True, seeds=(0,))


@pytest.mark.skipif("trl" in sys.modules, reason="for an environment without TRL")
def test_an_interpreter_without_trl_says_what_to_do() -> None:
    with pytest.raises(ContenderFailed, match="--trl-python"):
        run_trl_benchmark(python=sys.executable, quick=True, seeds=(0,))
