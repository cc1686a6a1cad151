"""Every call is in flight or has one outcome."""

from __future__ import annotations

import pytest

from rewardflow.mock_judge.request_counts import Counts


def test_calls_in_flight_and_their_peak_are_counted() -> None:
    counts = Counts()
    with counts.call() as first, counts.call() as second:
        assert (counts.statistics().in_flight, counts.statistics().calls) == (2, 2)
        first.outcome = second.outcome = "answered"
    with counts.call() as third:
        third.outcome = "500"
    told = counts.statistics()
    assert (told.calls, told.in_flight, told.peak_in_flight) == (3, 0, 2)
    assert told.outcomes == {"answered": 2, "500": 1}


def test_a_call_that_was_broken_off_is_counted_as_disconnected() -> None:
    counts = Counts()
    with pytest.raises(KeyboardInterrupt), counts.call():
        raise KeyboardInterrupt
    assert counts.statistics().outcomes == {"disconnected": 1}


def test_a_request_knows_how_often_it_was_admitted_before() -> None:
    counts = Counts()
    assert [counts.admit(key) for key in (b"a", b"b", b"a", b"a")] == [0, 0, 1, 2]
    assert (counts.times_admitted(b"a"), counts.times_admitted(b"c")) == (3, 0)
    told = counts.statistics()
    assert (told.different_requests, told.admitted_again) == (2, {0: 2, 1: 1, 2: 1})
    assert counts.times_by_request() == {"61": 3, "62": 1}


def test_statistics_stay_as_they_were_when_they_were_taken() -> None:
    counts = Counts()
    before = counts.statistics()
    with counts.call():
        pass
    assert (before.calls, before.outcomes) == (0, {})
