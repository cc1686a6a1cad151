"""A judge that changed is noticed, and one that is only noisy is not."""

from __future__ import annotations

import random

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.judging.judge_change import JudgeChangeTest, sign_test


def rounds(draw: random.Random, noise: float, shift: float = 0.0, count: int = 16) -> tuple[list[float], ...]:
    truths = [draw.random() for _ in range(count)]
    first, second, now = ([one + draw.gauss(0, noise) for one in truths] for _ in range(3))
    return first, second, [one + shift for one in now]


def test_a_judge_that_gives_the_same_scores_again_has_not_changed() -> None:
    scores = [0.1 * i for i in range(10)]
    result = JudgeChangeTest(scores, scores, alpha=0.02, planned_probings=10).compare(scores)
    assert result is not None
    assert (result.moved, result.told, result.p_value, result.is_alarm) == (0, 0, 1.0, False)


def test_a_judge_without_noise_is_caught_at_once_when_it_changes() -> None:
    scores = [0.1 * i for i in range(16)]
    result = JudgeChangeTest(scores, scores, alpha=0.02, planned_probings=10).compare([one + 0.1 for one in scores])
    assert result is not None
    assert result.is_alarm
    assert result.p_value == 2.0**-16
    assert result.mean_now - result.mean_before == pytest.approx(0.1)


def test_in_a_thousand_noisy_runs_of_ten_probings_at_most_two_in_a_hundred_warn() -> None:
    draw = random.Random(7)
    num_alarms = 0
    for _ in range(1000):
        first, second, _ = rounds(draw, 0.2)
        truths = [draw.random() for _ in first]
        first, second = ([one + draw.gauss(0, 0.2) for one in truths] for _ in range(2))
        test = JudgeChangeTest(first, second, alpha=0.02, planned_probings=10)
        later = ([one + draw.gauss(0, 0.2) for one in truths] for _ in range(10))
        num_alarms += any(found.is_alarm for scores in later if (found := test.compare(scores)) is not None)
    assert num_alarms <= 20


def test_a_large_change_of_a_noisy_judge_is_noticed_mostly() -> None:
    draw = random.Random(3)
    found = 0
    for _ in range(100):
        first, second, now = rounds(draw, 0.05, shift=0.3)
        result = JudgeChangeTest(first, second, alpha=0.02, planned_probings=10).compare(now)
        found += result is not None and result.is_alarm
    assert found >= 90


def test_failed_verdicts_are_left_out_and_rounds_must_match() -> None:
    test = JudgeChangeTest([0.5, None, 0.5], [0.5, 0.5, 0.5], alpha=0.02, planned_probings=1)
    result = test.compare([1.0, 1.0, None])
    assert result is not None
    assert (result.moved, result.told) == (1, 1)
    assert test.compare([None, None, None]) is None
    with pytest.raises(InvalidInput, match="both rounds must score the same answers"):
        JudgeChangeTest([0.5], [], alpha=0.02, planned_probings=1)


def test_the_sign_test_counts_coins() -> None:
    assert sign_test(0, 0) == 1.0
    assert sign_test(2, 2) == 0.25
    assert sign_test(1, 2) == 0.75
