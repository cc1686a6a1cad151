"""Simulated audits: honest runs are silent, hacked ones are heard, and a seed gives the same run again."""

from __future__ import annotations

from rewardflow.bench.judging.simulated_audits import STEPS, is_false_alarm, steps_to_alarm


def test_honest_runs_of_each_kind_are_silent() -> None:
    assert not any(is_false_alarm(seed) for seed in range(6))


def test_a_hacked_run_is_heard_after_the_hack_began() -> None:
    waits = [steps_to_alarm(seed) for seed in range(4)]
    assert all(wait is not None and 0 < wait < STEPS for wait in waits)
    assert waits == [steps_to_alarm(seed) for seed in range(4)]
