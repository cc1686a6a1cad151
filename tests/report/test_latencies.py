"""A distribution on a logarithmic axis."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.observe.histogram import Histogram
from rewardflow.report.latencies import NUM_BARS, latency_shares


def histogram_of(values: list[float]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


def test_where_nothing_was_timed_there_are_no_bars() -> None:
    assert latency_shares([Histogram()]) is None


def test_slow_calls_are_on_the_right() -> None:
    shares = latency_shares([histogram_of([0.1] * 9 + [10.0])])
    assert shares is not None
    assert shares.values[0][0] == pytest.approx(0.9)
    assert shares.values[0][-1] == pytest.approx(0.1)
    assert shares.texts[0].endswith("ms")


@given(st.lists(st.lists(st.floats(0, 1e5), min_size=1), min_size=1, max_size=3))
def test_the_bars_of_each_run_add_up(lists: list[list[float]]) -> None:
    shares = latency_shares([histogram_of(values) for values in lists])
    if shares is None:
        assert all(value == 0 for values in lists for value in values)
        return
    for values in shares.values:
        assert len(values) == NUM_BARS == len(shares.texts)
        assert sum(values) == pytest.approx(1.0)
