"""The bins hold every second that calls were in flight, and stay few."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.observe.call_load import LEAST_WIDTH_S, MAX_BINS, CallLoad

CALLS = st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e3)), min_size=1, max_size=40)


def test_without_calls_there_are_no_bins() -> None:
    assert CallLoad().to_json()["calls"] == []


def test_a_bin_says_how_many_calls_it_had_on_average() -> None:
    load = CallLoad()
    for started_s, ended_s in [(0.0, 48.0), (0.0, 16.0), (8.0, 16.0)]:
        load.add(started_s, ended_s)
    told = load.to_json()
    assert (told["started_s"], told["width_s"]) == (0.0, 1.0)
    assert told["calls"][:8] == [2.0] * 8
    assert told["calls"][8:16] == [3.0] * 8
    assert told["calls"][16:] == [1.0] * 32 + [0.0]


def test_a_call_that_took_no_time_or_an_impossible_time_adds_nothing() -> None:
    load = CallLoad()
    for started_s, ended_s in [(1.0, 1.0), (2.0, 1.0), (math.nan, 1.0), (1.0, math.inf)]:
        load.add(started_s, ended_s)
    assert sum(load.to_json()["calls"]) == 0.0


@given(calls=CALLS)
def test_the_bins_hold_every_second_of_every_call_and_are_few(calls: list[tuple[float, float]]) -> None:
    load = CallLoad()
    for started_s, latency_s in calls:
        load.add(started_s, started_s + latency_s)
    told = load.to_json()
    assert 1 <= len(told["calls"]) <= MAX_BINS
    assert math.log2(told["width_s"] / LEAST_WIDTH_S) % 1 == 0
    total_s = sum(latency_s for _, latency_s in calls)
    assert sum(told["calls"]) * told["width_s"] == pytest.approx(total_s, abs=0.001 * MAX_BINS * told["width_s"])


@given(calls=CALLS)
def test_no_bin_has_more_calls_than_there_were_nor_calls_outside_of_its_time(calls: list[tuple[float, float]]) -> None:
    load = CallLoad()
    for started_s, latency_s in calls:
        load.add(started_s, started_s + latency_s)
    told = load.to_json()
    for index, count in enumerate(told["calls"]):
        began_s = told["started_s"] + index * told["width_s"]
        ended_s = began_s + told["width_s"]
        overlaps = [min(s + d, ended_s) - max(s, began_s) for s, d in calls if s < ended_s and s + d > began_s]
        assert count == pytest.approx(sum(overlaps) / told["width_s"], abs=0.002)
