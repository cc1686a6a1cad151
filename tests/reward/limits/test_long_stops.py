"""A long stop tells the least rate that the service can have."""

from __future__ import annotations

from rewardflow.reward.limits.long_stops import LongStops


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
