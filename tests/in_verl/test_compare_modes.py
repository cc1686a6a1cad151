"""The figures of the comparison, computed from invented spans."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from compare_modes import Delays, ideal_step_s, step_times
from verl_cpu_spans import Span

# Version 0 to 3; the middle step is generated, its log-probs are taken, and its two updates are an hour apart.
SPANS = [
    Span("publish", 0.0, 1.0, 0),
    Span("update", 5.0, 6.0),
    Span("publish", 9.0, 10.0, 1),
    Span("generate", 8.0, 12.0),  # began before the weights were there
    Span("log_probs", 12.0, 15.0),
    Span("update", 20.0, 21.0),
    Span("update", 3621.0, 3622.0),
    Span("publish", 3699.0, 3700.0, 2),
    Span("update", 3800.0, 3801.0),
    Span("publish", 3900.0, 3901.0, 3),
]


def test_a_step_lasts_from_one_publishing_to_the_next_and_the_first_and_last_do_not_count() -> None:
    (step,) = step_times(SPANS)
    assert step.step_s == pytest.approx(3690.0)
    assert step.first_update_s == pytest.approx(11.0)
    assert (step.generate_s, step.log_probs_s, step.update_s) == (2.0, 3.0, 2.0)
    assert step.num_updates == 2
    assert step.waiting_s == pytest.approx(3690.0 - 7.0)


def test_slow_groups_are_those_with_the_slowest_quarter_of_verdicts() -> None:
    delays = Delays(median_s=1.0, num_prompts=40)
    assert delays.slow_share(range(40)) == pytest.approx(0.25)
    slowest = max(range(40), key=delays.slowest_s)
    assert delays.slow_share([slowest]) == 1.0
    assert Delays(median_s=0.0, num_prompts=40).slow_share(range(40)) is None


def test_an_ideal_step_with_instant_verdicts_is_its_work_and_with_slow_ones_no_shorter_than_they_allow() -> None:
    work = {"generate_s": 0.8, "log_probs_s": 0.1, "update_s": 0.2}
    assert ideal_step_s(Delays(median_s=0.0, num_prompts=104), steps=12, **work) == pytest.approx(1.1)
    slow = Delays(median_s=100.0, num_prompts=104)  # all verdicts are cut off at 30 s or near it
    assert ideal_step_s(slow, steps=12, **work) == pytest.approx(15.0, rel=0.1)
