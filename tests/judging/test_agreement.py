"""Figures of agreement are those of the textbooks, and say nothing where the data says nothing."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.judging.agreement import (
    Figure,
    ScorePair,
    accuracy,
    correlation,
    estimate,
    kappa,
    mean_difference,
    ordered_pairs,
    ranks,
    spearman,
)
from rewardflow.judging.rejudging import best_changes


def pairs(*both: tuple[float, float], group: str | None = None) -> list[ScorePair]:
    return [ScorePair(score, label, group or str(i)) for i, (score, label) in enumerate(both)]


def test_accuracy_and_kappa_of_a_known_table() -> None:
    # 20 yes/yes, 5 yes/no, 10 no/yes, 15 no/no: a textbook's example, with a kappa of 0.4.
    table = pairs(*[(1, 1)] * 20, *[(1, 0)] * 5, *[(0, 1)] * 10, *[(0, 0)] * 15)
    assert accuracy(0.5)(table) == 0.7
    assert kappa(0.5)(table) == pytest.approx(0.4)


def test_kappa_is_unknown_if_both_sides_know_one_class_only() -> None:
    assert kappa(0.5)(pairs((1, 1), (0.9, 1))) is None
    assert kappa(0.5)(pairs((1, 1), (1, 0))) == 0.0


def test_ranks_of_equal_values_are_their_mean() -> None:
    assert ranks([3.0, 1.0, 3.0, 2.0]) == [3.5, 1.0, 3.5, 2.0]
    assert ranks([]) == []


def test_rank_correlation_sees_order_alone() -> None:
    assert spearman(pairs((1, 10), (2, 100), (3, 1000))) == pytest.approx(1.0)
    assert spearman(pairs((1, 3), (2, 2), (3, 1))) == pytest.approx(-1.0)
    assert spearman(pairs((1, 5), (2, 5))) is None
    assert correlation([1.0], [1.0]) is None


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), min_size=2, max_size=30))
def test_a_correlation_lies_between_minus_one_and_one(both: list[tuple[float, float]]) -> None:
    found = spearman(pairs(*both))
    assert found is None or -1.0 <= found <= 1.0


def test_ordered_pairs_compare_answers_to_one_question_alone() -> None:
    one = pairs((0.9, 1.0), (0.1, 0.0), (0.1, 1.0), group="a")
    assert ordered_pairs(one) == pytest.approx((1 + 0.5) / 2)
    apart = pairs((0.9, 0.0), (0.1, 1.0))
    assert ordered_pairs(apart) is None


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    draw = random.Random(7)
    num_covered = 0
    for _ in range(200):
        sample = [ScorePair(float(draw.random() < 0.7), 1.0, str(i)) for i in range(60)]
        found = estimate(sample, accuracy(0.5), resamples=200)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        num_covered += found.low <= 0.7 <= found.high
    assert 0.88 <= num_covered / 200 <= 1.0


def test_an_interval_is_wider_if_answers_come_in_groups() -> None:
    alone = [ScorePair(float(i % 2), 1.0, str(i)) for i in range(64)]
    grouped = [ScorePair(float(i // 8 % 2), 1.0, str(i // 8)) for i in range(64)]

    def width(sample: list[ScorePair]) -> float:
        found = estimate(sample, accuracy(0.5))
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        return found.high - found.low

    assert width(grouped) > 1.5 * width(alone)


@pytest.mark.parametrize("figure", [ordered_pairs, best_changes])
def test_a_group_that_is_drawn_twice_counts_as_two_groups(figure: Figure) -> None:
    """Half of 40 groups of two are in order, so the figure of a resample is the mean of 40 coins."""
    sample = []
    for i in range(40):
        right, wrong = float(i % 2), 1.0 - i % 2
        sample += [ScorePair(right, 1.0, str(i)), ScorePair(wrong, 0.0, str(i))]
    of_groups = [ScorePair(float(i % 2), 1.0, str(i)) for i in range(40)]
    found, coins = estimate(sample, figure), estimate(of_groups, accuracy(0.5))
    assert found is not None
    assert coins is not None
    assert (found.low, found.high) == (coins.low, coins.high) == (0.35, 0.65)


def test_one_group_has_a_figure_and_no_interval_and_nothing_has_no_figure() -> None:
    found = estimate(pairs((1, 0), (1, 1), group="a"), mean_difference)
    assert found is not None
    assert (found.value, found.low, found.high) == (0.5, None, None)
    assert estimate([], mean_difference) is None


def test_the_same_pairs_give_the_same_interval() -> None:
    sample = pairs(*[(i % 3, i % 2) for i in range(30)])
    assert estimate(sample, spearman) == estimate(sample, spearman)
