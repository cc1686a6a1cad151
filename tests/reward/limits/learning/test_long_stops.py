"""A long stop tells the least rate that the service can have."""

from __future__ import annotations

from rewardflow.reward.limits.learning.long_stops import LongStops


def test_the_calls_from_one_stop_to_the_next_bound_the_rate_from_below() -> None:
    stops = LongStops()
    assert stops.stopped(30.0, 0.0) is None, "nothing was counted before the first stop"
    stops.num_sent = 501
    assert stops.stopped(30.0, 80.0) == 500 / 80
    assert stops.ends_at == 110.0


def test_short_stops_tell_nothing_and_do_not_end_the_count() -> None:
    stops = LongStops()
    stops.stopped(30.0, 0.0)
    stops.num_sent = 101
    assert stops.stopped(0.5, 40.0) is None
    assert stops.stopped(30.0, 50.0) == 2.0


def stopped_for_half_a_minute(refused_rate: float) -> LongStops:
    stops = LongStops()
    stops.stopped(30.0, 0.0)
    stops.refused_rate = refused_rate
    return stops


def test_a_trial_lies_between_the_bounds_until_they_are_close() -> None:
    assert stopped_for_half_a_minute(refused_rate=16.0).trial_rate(4.0) == 8.0
    assert stopped_for_half_a_minute(refused_rate=4.2).trial_rate(4.0) == 4.0


def test_only_a_trial_close_to_the_refused_rate_is_held_for_long() -> None:
    stops = stopped_for_half_a_minute(refused_rate=10.0)
    assert stops.hold_s(5.0) == 0.0
    assert stops.hold_s(9.0) == 30.0 / 0.08
