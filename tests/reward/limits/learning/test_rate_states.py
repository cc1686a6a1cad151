"""Each state chooses its rate; time without a refusal ends it."""

from __future__ import annotations

import math

import pytest

from rewardflow.reward.limits.learning.rate_probes import RateClimb
from rewardflow.reward.limits.learning.rate_states import RateStates


def send(states: RateStates, num_calls: int, now: float = 0.0) -> float:
    """Sends calls at exactly the rate; returns the time of the last one."""
    for _ in range(num_calls):
        assert states.rate is not None
        now += 1.0 / states.rate
        states.sent(now, 1.0 / states.rate)
    return now


def holding(rate: float = 10.0) -> RateStates:
    states = RateStates()
    states.hold(0.0, rate, states.current, "measured")
    return states


def test_a_free_service_has_no_rate() -> None:
    states = holding()
    states.free(1.0, "refusals are chance")
    assert (states.state, states.rate) == ("free", None)
    assert states.history[-1] == (1.0, math.inf, "free: refusals are chance")


def test_a_measured_rate_is_held_a_little_below_for_200_calls_and_55_seconds() -> None:
    states = holding(10.0)
    assert states.rate == 9.7
    now = send(states, 530)
    assert not states.is_over(now)
    now = send(states, 10, now)
    assert states.is_over(now)
    slow = holding(1.0)
    assert not slow.is_over(send(slow, 190)), "190 s, but fewer than 200 calls"


def test_a_refusal_restarts_the_time_without_refusals() -> None:
    states = holding(10.0)
    now = send(states, 530)
    states.hush(now)
    assert not states.is_over(send(states, 10, now))


def test_idle_time_does_not_end_a_state() -> None:
    states = holding(10.0)
    for number in range(1000):
        states.sent(3600.0 * number, 0.0)
    assert not states.is_over(3600.0 * 1000)


def test_a_search_that_was_halved_does_not_go_back_to_its_first_rate_which_was_refused() -> None:
    states = RateStates()
    states.search(0.0, 64.0, "all accepted")
    for index in range(1, 7):
        states.halve_if_mostly_refused(index, 1.0)
    assert states.rate == 32.0
    while states.state == "searching":
        states.search_on(2.0)
    assert states.rate == 32.0
    states.search_higher(3.0)
    assert states.rate == 32.0 * 2**5


def test_a_search_doubles_six_times_and_then_listens_at_its_first_rate() -> None:
    states = RateStates()
    states.heard(2.0)
    states.search(0.0, 1.0, "refusals")
    for doubling in range(1, 7):
        states.search_on(float(doubling))
        assert states.rate == 2.0**doubling
    states.search_on(7.0)
    assert (states.state, states.rate) == ("listening", 1.0)
    assert not states.is_over(9.4)
    assert states.is_over(9.5), "1.25 times as long as a refusal takes to arrive"


def test_the_next_search_begins_near_the_end_of_the_last() -> None:
    states = RateStates()
    states.search(0.0, 1.0, "refusals")
    states.search_higher(1.0)
    assert (states.state, states.rate) == ("searching", 32.0)


def test_a_sweep_ends_with_listening_below_its_first_rate() -> None:
    states = holding(10.0)
    states.begin_sweep(0.0, 10.0, 1.1, 12, "held long enough")
    rates = []
    while states.state == "sweeping":
        assert states.rate is not None
        rates.append(states.rate)
        states.sweep_on(1.0)
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(11.0)
    assert (states.state, states.rate) == ("listening", 9.7)


def test_the_rate_is_halved_when_most_calls_are_refused_but_never_to_nothing() -> None:
    states = RateStates()
    states.search(0.0, 1.0, "refusals")
    assert [states.halve_if_mostly_refused(index, 0.0) for index in range(1, 7)] == [False] * 5 + [True]
    assert states.rate == 0.5
    for index in range(7, 1000):
        states.halve_if_mostly_refused(index, 0.0)
    assert states.rate == 1 / 30


def test_a_new_measurement_keeps_the_one_before_for_late_refusals() -> None:
    states = RateStates()
    before = states.current
    states.renew()
    assert states.previous is before
    assert states.current is not before


def test_the_history_keeps_the_last_64_changes_and_says_why() -> None:
    states = RateStates()
    for number in range(1, 1000):
        states.search(float(number), float(number), "refusals")
        states.climb(float(number), float(number), RateClimb(0.1), "no refusals")
    assert len(states.history) == 64
    assert states.history[-1] == (999.0, pytest.approx(60.0 * 999.0 * 1.1), "climbing: no refusals")


def test_the_history_leaves_out_small_changes() -> None:
    states = holding(10.0)
    num_changes = len(states.history)
    states.hold(1.0, 10.05, states.current, "measured again")
    assert len(states.history) == num_changes
