"""Quantiles are numbers of the sample, at the right rank."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rewardflow.flow.quantiles import Quantiles


def test_quantiles_are_numbers_that_were_there() -> None:
    assert Quantiles.of([4.0, 1.0, 3.0, 2.0]).to_json() == {
        "count": 4,
        "mean": 2.5,
        "p10": 1.0,
        "p50": 2.0,
        "p90": 4.0,
        "max": 4.0,
    }


def test_of_nothing_nothing_is_said() -> None:
    assert Quantiles.of([]) == Quantiles(count=0)


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_at_least_half_of_the_numbers_do_not_exceed_the_median(values: list[float]) -> None:
    p50 = Quantiles.of(values).p50
    assert p50 in values
    assert sum(value <= p50 for value in values) * 2 >= len(values)
