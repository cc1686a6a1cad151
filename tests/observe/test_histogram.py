"""The histogram's answers agree with exact ones to within its error."""

from __future__ import annotations

import json
import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.errors import InvalidInput
from rewardflow.observe.histogram import RELATIVE_ERROR, Histogram

MEASURED = st.floats(min_value=0.0, max_value=1e12, allow_subnormal=False)
ANY_SIZE = st.floats(min_value=sys.float_info.min, max_value=sys.float_info.max)
SHARES = st.floats(min_value=0.0, max_value=1.0)


def histogram_of(values: list[float]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


def exact_quantile(values: list[float], q: float) -> float:
    return sorted(values)[max(1, math.ceil(q * len(values))) - 1]


@given(values=st.lists(MEASURED, min_size=1, max_size=200), q=SHARES)
def test_every_quantile_is_within_one_percent_of_the_exact_one(values: list[float], q: float) -> None:
    assert histogram_of(values).quantile(q) == pytest.approx(exact_quantile(values, q), rel=RELATIVE_ERROR, abs=0.0)


@given(values=st.lists(ANY_SIZE, min_size=1, max_size=50), q=SHARES)
def test_the_promise_holds_over_the_whole_range_of_floats(values: list[float], q: float) -> None:
    assert histogram_of(values).quantile(q) == pytest.approx(exact_quantile(values, q), rel=RELATIVE_ERROR, abs=0.0)


@given(value=ANY_SIZE, other=ANY_SIZE, third=ANY_SIZE)
def test_the_middle_of_three_is_found_even_on_the_border_of_a_bucket(value: float, other: float, third: float) -> None:
    values = [value, other, third]
    assert histogram_of(values).quantile(0.5) == pytest.approx(sorted(values)[1], rel=RELATIVE_ERROR, abs=0.0)


@given(values=st.lists(MEASURED, min_size=1))
def test_count_sum_and_both_ends_are_exact(values: list[float]) -> None:
    histogram = histogram_of(values)
    total = 0.0
    for value in values:
        total += value
    assert (histogram.count, histogram.sum) == (len(values), total)
    assert (histogram.min, histogram.max) == (min(values), max(values))
    assert (histogram.quantile(0.0), histogram.quantile(1.0)) == (min(values), max(values))
    assert histogram.mean == total / len(values)


@given(one=st.lists(MEASURED), other=st.lists(MEASURED), q=SHARES)
def test_a_merged_histogram_answers_like_one_of_all_the_numbers(one: list[float], other: list[float], q: float) -> None:
    merged, whole = histogram_of(one), histogram_of(one + other)
    merged.merge(histogram_of(other))
    assert merged.quantile(q) == whole.quantile(q)
    assert (merged.count, merged.min, merged.max) == (whole.count, whole.min, whole.max)
    assert merged.sum == pytest.approx(whole.sum)


def test_merging_leaves_the_other_one_alone() -> None:
    one, other = histogram_of([1.0]), histogram_of([2.0, 3.0])
    one.merge(other)
    one.add(2.0)
    assert other == histogram_of([2.0, 3.0])


@given(values=st.lists(MEASURED))
def test_a_histogram_survives_json(values: list[float]) -> None:
    histogram = histogram_of(values)
    again = Histogram.from_json(json.loads(json.dumps(histogram.to_json(), allow_nan=False)))
    assert again == histogram
    again.add(1.0)
    assert again.count == histogram.count + 1


def test_an_empty_histogram_has_no_quantiles_and_no_mean() -> None:
    histogram = Histogram()
    assert (histogram.quantile(0.5), histogram.mean, histogram.min, histogram.max) == (None, None, None, None)


def test_numbers_too_small_to_measure_count_as_zero() -> None:
    assert histogram_of([0.0, 5e-324, 5e-324, 1.0]).quantile(0.5) == 0.0


@pytest.mark.parametrize("value", [-1.0, -0.001, math.nan, math.inf, -math.inf])
def test_a_number_that_is_negative_or_not_finite_is_refused_and_changes_nothing(value: float) -> None:
    histogram = Histogram()
    with pytest.raises(InvalidInput, match="finite numbers of at least 0"):
        histogram.add(value)
    assert histogram == Histogram()


@pytest.mark.parametrize("q", [-0.1, 1.1, math.nan])
def test_a_quantile_outside_zero_to_one_is_refused(q: float) -> None:
    with pytest.raises(InvalidInput, match=r"\[0, 1\]"):
        Histogram().quantile(q)


def test_a_wide_range_needs_few_buckets() -> None:
    histogram = histogram_of([1.001**exponent / 1000 for exponent in range(14_000)])  # a millisecond to 20 minutes
    assert len(histogram.to_json()["buckets"]) < 720


@pytest.mark.parametrize(
    "change",
    [{"relative_error": 0.02}, {"count": 7}, {"buckets": None}, {"buckets": {"x": 1}}, {"sum": "many"}],
)
def test_a_damaged_histogram_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="histogram"):
        Histogram.from_json({**histogram_of([1.0, 2.0]).to_json(), **change})


@given(st.lists(st.floats(0, 1e9)))
def test_points_are_all_of_the_numbers_in_order_and_near(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    points = list(histogram.points())
    assert sum(count for _, count in points) == len(values)
    told = [value for value, count in points for _ in range(count)]
    assert told == sorted(told)
    for one, other in zip(told, sorted(values), strict=True):
        assert one == pytest.approx(other, rel=0.0101, abs=1e-300)
