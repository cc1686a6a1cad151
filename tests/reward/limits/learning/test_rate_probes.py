"""Sweeps and climbs choose rates above the estimate, and a climb waits for saved-up allowance to be spent."""

from __future__ import annotations

import pytest

from rewardflow.reward.limits.learning.rate_probes import RateClimb, RateSweep, SavedAllowance
from rewardflow.reward.limits.learning.refusals import Refusals


def saved_for(seconds: float, rate: float = 10.0) -> SavedAllowance:
    saved = SavedAllowance()
    saved.reset(0.0)
    saved.spend(seconds, rate)
    return saved


def num_calls_to_spend(saved: SavedAllowance, now: float, rate: float = 10.0) -> int:
    num_calls = 0
    while not saved.is_spent:
        saved.spend(now, rate)
        num_calls += 1
    return num_calls


def test_a_service_saves_up_allowance_in_idle_time_but_at_most_a_minute_of_it() -> None:
    assert num_calls_to_spend(saved_for(5.0), 5.0) == 49
    assert num_calls_to_spend(saved_for(3600.0), 3600.0) == 599


def test_a_refusal_shows_that_nothing_is_saved_up() -> None:
    saved = saved_for(3600.0)
    saved.reset(3600.0)
    assert saved.is_spent


def test_a_sweep_reaches_its_last_rate_after_the_planned_calls() -> None:
    sweep = RateSweep.plan(Refusals(), 10.0, 2.0, 24)
    rate = 10.0
    for _ in range(24):
        rate *= sweep.growth
        assert not sweep.is_over(rate)
    assert rate == pytest.approx(20.0)
    assert sweep.is_over(rate * sweep.growth)


def test_a_sweep_measures_the_rate_of_the_call_before_the_slowest_refused_one() -> None:
    refusals = Refusals()
    sweep = RateSweep.plan(refusals, 10.0, 2.0, 1)
    refusals.add(0.0, 5, 36.0)
    refusals.add(0.0, 4, 30.0)
    assert sweep.measured_rate() == 15.0
    refusals.add(0.0, 1, 10.0)
    assert sweep.measured_rate() == 10.0, "never below the first rate"


def test_a_climb_begins_lower_if_more_calls_are_in_flight() -> None:
    assert RateClimb.after_sweep(10.0, echo_s=1.0).excess == 0.10
    assert RateClimb.after_sweep(100.0, echo_s=5.0).excess == 0.02
    assert RateClimb.after_sweep(1000.0, echo_s=60.0).excess == 0.01


def test_a_climb_doubles_its_excess_only_after_the_saved_allowance_is_spent() -> None:
    climb = RateClimb(0.3)
    assert climb.rate(10.0) == 13.0
    assert climb.grown(SavedAllowance()).excess == 0.6
    assert climb.grown(saved_for(5.0)).excess == 0.4
    assert RateClimb(0.8).grown(saved_for(5.0)).excess == 0.8, "it does not fall"


def test_a_climb_after_a_rough_count_goes_up_by_the_error_of_the_count() -> None:
    assert RateClimb(0.01, step=0.2).grown(SavedAllowance()) == RateClimb(0.2, step=0.2)


def test_a_climb_waits_longer_if_refusals_arrive_slowly_or_calls_are_rare() -> None:
    climb = RateClimb(0.1)
    assert climb.growth_after_s(100.0, echo_s=1.0) == 8.0
    assert climb.growth_after_s(100.0, echo_s=10.0) == 25.0
    assert climb.growth_after_s(1.0, echo_s=1.0) == 40.0
    assert climb.growth_after_s(0.01, echo_s=1.0) == 120.0
    assert RateClimb(0.01, step=0.01).growth_after_s(1.0, echo_s=1.0) == 100.0
