"""The search above a soft limit: what is measured at one rate decides the next."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rewardflow.reward.limits.learning.pressing import Press, hardly_refuses, weight_of_refusal
from rewardflow.reward.limits.learning.refusals import Refusals

Accepted = Callable[[float], float]
"""Accepted calls per second at a rate."""


def soft(limit: float) -> Accepted:
    """A limit without a burst, for calls that arrive wholly at random."""
    return lambda rate: rate / (1.0 + rate / limit)


def hard(limit: float) -> Accepted:
    return lambda rate: min(rate, limit)


def sent(rate: float, accepted: Accepted, num_calls: int) -> Refusals:
    """Returns a measurement of so many calls, evenly accepted."""
    calls = Refusals(is_trial=True)
    share = accepted(rate) / rate
    for index in range(1, num_calls + 1):
        calls.num_sent += 1
        if index in (1, num_calls) or int(index * share) == int((index - 1) * share):
            calls.add(index / rate, index, rate)
    calls.settle(num_calls / rate)
    return calls


def window(press: Press, accepted: Accepted) -> Refusals:
    for num_calls in range(20, 5000, 20):
        calls = sent(press.rate, accepted, num_calls)
        if press.is_measured(calls):
            return calls
    raise AssertionError("a window never ends")


def press_at(polite_rate: float, accepted: Accepted, max_refused: float = 0.85) -> Press:
    return Press(polite_rate, accepted(polite_rate), max_refused, until=3600.0)


def pressed(press: Press, accepted: Accepted, windows: int = 30) -> bool:
    """Goes on for so many windows; returns whether the limit was worth it for that long."""
    return all(press.go_on(window(press, accepted), is_even=True) for _ in range(windows))


def best_rate(press: Press, accepted: Accepted) -> float:
    """Returns the rate that the search comes back to most often."""
    rates = []
    for _ in range(40):
        assert press.go_on(window(press, accepted), is_even=True)
        rates.append(press.rate)
    return max(set(rates), key=rates.count)


def test_a_soft_limit_is_pressed_until_as_many_calls_are_refused_as_may_be() -> None:
    accepted = soft(10.0)
    rate = best_rate(press_at(5.0, accepted), accepted)
    assert accepted(rate) / 10.0 >= 0.8
    assert 0.8 <= 1.0 - accepted(rate) / rate <= 0.86


@pytest.mark.parametrize("max_refused", [0.5, 0.6, 0.7])
def test_fewer_calls_are_refused_if_fewer_may_be(max_refused: float) -> None:
    accepted = soft(10.0)
    rate = best_rate(press_at(3.0, accepted, max_refused), accepted)
    assert 1.0 - accepted(rate) / rate <= max_refused + 0.03


@pytest.mark.parametrize("max_refused", [0.0, 0.2, 0.3])
def test_few_refusals_leave_no_room_for_pressing(max_refused: float) -> None:
    assert not press_at(5.0, soft(10.0), max_refused).is_possible
    assert press_at(5.0, soft(10.0), 0.85).is_possible


def test_a_hard_limit_is_given_up_after_one_short_window() -> None:
    press = press_at(9.7, hard(10.0))
    calls = window(press, hard(10.0))
    assert calls.num_sent <= 240
    assert not press.go_on(calls, is_even=True)


def test_a_hard_limit_of_which_little_was_used_is_not_pressed_for_more_than_it_gives() -> None:
    accepted = hard(10.0)
    rate = best_rate(press_at(7.0, accepted), accepted)
    assert rate < 20.0
    assert accepted(rate) == pytest.approx(10.0)


def test_a_service_that_begins_to_accept_little_is_no_longer_pressed() -> None:
    press = press_at(5.0, soft(10.0))
    assert pressed(press, soft(10.0), windows=8)
    assert not pressed(press, soft(2.0), windows=1)


def test_a_service_that_refuses_everything_is_given_up_within_a_hundred_calls() -> None:
    press = press_at(5.0, soft(10.0))
    assert pressed(press, soft(10.0), windows=8)
    calls = window(press, lambda rate: 1e-9)
    assert calls.num_sent <= 100
    assert not press.go_on(calls, is_even=True)


def test_a_limit_that_was_lowered_a_little_is_pressed_less() -> None:
    press = press_at(5.0, soft(10.0))
    assert pressed(press, soft(10.0), windows=8)
    before = press.rate
    assert pressed(press, soft(7.5), windows=3)
    assert press.rate < 0.9 * before


def test_a_limit_that_was_raised_a_little_is_pressed_more_and_one_that_is_gone_not_at_all() -> None:
    press = press_at(5.0, soft(10.0))
    assert best_rate(press, soft(20.0)) > 80.0
    assert hardly_refuses(sent(50.0, hard(45.0), 1000))
    assert not hardly_refuses(sent(50.0, hard(45.0), 100)), "too few calls to tell"
    assert not hardly_refuses(sent(50.0, hard(30.0), 1000))


def test_windows_in_which_the_slots_decided_teach_nothing_and_four_of_them_end_it() -> None:
    press = press_at(5.0, soft(10.0))
    rate = press.rate
    assert [press.go_on(window(press, soft(10.0)), is_even=False) for _ in range(4)] == [True, True, True, False]
    assert press.rate == rate


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2])
def test_a_refusal_counts_in_full_where_few_calls_are_refused(share: float) -> None:
    assert weight_of_refusal(share) == 1.0


@pytest.mark.parametrize("share", [0.3, 0.5, 0.85, 0.95])
def test_a_request_fails_after_refusals_that_are_as_unlikely_as_ten_at_a_fifth(share: float) -> None:
    num_refusals = 10.0 / weight_of_refusal(share)
    assert share**num_refusals == pytest.approx(0.2**10)
