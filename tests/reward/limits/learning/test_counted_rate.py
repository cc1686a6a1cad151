"""What a count of accepted and refused calls tells, and when most calls are refused."""

from __future__ import annotations

import pytest

from rewardflow.reward.limits.learning import counted_rate as counts
from rewardflow.reward.limits.learning.counted_rate import MostlyRefused
from rewardflow.reward.limits.learning.refusals import Refusals


def counted(num_refused: int, *, every: int, rate: float = 10.0, stopped_s: float = 0.0) -> Refusals:
    """Counts calls at `rate` per second, of which the first and then each `every`th is refused."""
    refusals = Refusals()
    for number in range(num_refused):
        refusals.add(number * every / rate, number * every + 1, rate)
    refusals.settle(float("inf"))
    refusals.stopped_s = stopped_s
    return refusals


def test_the_counted_rate_is_what_was_accepted_between_refusals() -> None:
    assert counts.counted_rate(counted(11, every=5)) == pytest.approx(8.0)


def test_a_count_is_usable_after_enough_accepted_calls_a_long_time_or_a_stop() -> None:
    assert counts.is_usable(counted(3, every=11))
    assert not counts.is_usable(counted(3, every=10))
    assert counts.is_usable(counted(8, every=2, rate=1.0))
    assert counts.is_usable(counted(3, every=5, stopped_s=0.1))
    assert not counts.is_usable(counted(3, every=11, rate=100.0)), "too short a time"


def test_a_count_is_good_from_a_hundred_accepted_calls() -> None:
    assert counts.is_good(counted(11, every=11))
    assert not counts.is_good(counted(11, every=10))


def test_a_count_is_doubtful_if_every_second_call_is_refused() -> None:
    assert counts.is_doubtful(counted(20, every=2))
    assert not counts.is_doubtful(counted(20, every=3))


def test_stops_of_more_than_a_tenth_of_the_time_spoil_a_count() -> None:
    assert counts.is_cut_by_stops(counted(11, every=10, stopped_s=1.1))
    assert not counts.is_cut_by_stops(counted(11, every=10, stopped_s=0.9))


def test_eight_refusals_without_an_accepted_call_show_that_nothing_is_accepted() -> None:
    assert counts.accepts_nothing(counted(8, every=1))
    assert not counts.accepts_nothing(counted(7, every=1))
    assert not counts.accepts_nothing(counted(8, every=2))


def test_a_first_limit_is_searched_if_most_calls_are_refused_and_counted_if_few_are() -> None:
    assert counts.needs_search(counted(6, every=1))
    assert counts.needs_search(counted(20, every=2))
    assert counts.needs_search(counted(1, every=1, stopped_s=1.0))
    few = counted(8, every=10)
    assert counts.shows_first_limit(few)
    assert not counts.needs_search(few)
    assert not counts.shows_first_limit(counted(7, every=10))


def test_six_refusals_in_a_row_are_most_calls_and_every_second_call_is_not() -> None:
    watch = MostlyRefused()
    assert [watch.refused(index) for index in range(101, 107)] == [False] * 5 + [True]
    watch.restart(200)
    assert not any(watch.refused(index) for index in range(200, 300, 2))


def test_refusals_of_calls_from_before_the_restart_do_not_count() -> None:
    watch = MostlyRefused()
    watch.restart(100)
    assert not any(watch.refused(index) for index in range(1, 100))
