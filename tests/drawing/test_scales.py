"""Axes with round numbers, figures as people write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.drawing.scales import LogScale, Scale, figure, padded, powers_of_ten, ticks


def test_a_scale_takes_ends_to_ends() -> None:
    scale = Scale(10.0, 20.0, 100.0, 0.0)
    assert [scale(10.0), scale(15.0), scale(20.0)] == [100.0, 50.0, 0.0]
    assert Scale(1.0, 1.0, 0.0, 10.0)(1.0) == 5.0


def test_a_logarithmic_scale_takes_the_geometric_middle_to_the_middle() -> None:
    assert LogScale(1.0, 100.0, 0.0, 10.0)(10.0) == pytest.approx(5.0)
    assert LogScale(1.0, 100.0, 0.0, 10.0)(0.0) == 0.0
    assert powers_of_ten(0.5, 2000.0) == [1.0, 10.0, 100.0, 1000.0]


def test_ticks_are_round() -> None:
    assert ticks(0.0, 10.0) == [0.0, 2.5, 5.0, 7.5, 10.0]
    assert ticks(0.0, 46.0, 2) == [0.0, 25.0]
    assert ticks(0.13, 0.47) == [0.2, 0.3, 0.4]
    assert ticks(3.0, 3.0) == [3.0]


@pytest.mark.parametrize("high", [5e-324, 1e-310, 1e-301])
def test_a_range_too_small_to_be_divided_has_one_tick(high: float) -> None:
    assert ticks(0.0, high) == [0.0]


@given(low=st.floats(-1e9, 1e9), span=st.floats(1e-6, 1e9))
def test_ticks_lie_within_and_are_few(low: float, span: float) -> None:
    found = ticks(low, low + span)
    assert 1 <= len(found) <= 12
    slack = 1e-6 * span + 1e-9 * abs(low)
    assert all(low - slack <= tick <= low + span + slack for tick in found)


@given(low=st.floats(-1e9, 1e9), span=st.floats(0, 1e9))
def test_a_padded_range_has_a_width(low: float, span: float) -> None:
    padded_low, padded_high = padded(low, low + span)
    assert padded_low < low or math.isclose(padded_low, low)
    assert padded_high > padded_low


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "s", "–"),  # noqa: RUF001
        (math.nan, "", "–"),  # noqa: RUF001
        (0.0, "s", "0 s"),
        (0.0000004, "s", "0 µs"),
        (0.25, "s", "250 ms"),
        (12.34, "s", "12.3 s"),
        (125.0, "s", "2 min 05 s"),
        (7260.0, "s", "2 h 01 min"),
        (-125.0, "s", "-2 min 05 s"),
        (0.0, "$", "$0.00"),
        (0.00081, "$", "$0.00081"),
        (12.5, "$", "$12.50"),
        (12345.6, "$", "$12,346"),
        (0.381, "%", "38.1 %"),
        (0.00001, "%", "< 0.01 %"),
        (1.0, "%", "100 %"),
        (1234.5, "", "1,234"),
        (1234567, "", "1,234,567"),
        (0.123456, "", "0.123"),
        (150, "tokens", "150 tokens"),
    ],
)
def test_figures_are_written_as_people_write_them(value: float | None, unit: str, text: str) -> None:
    assert figure(value, unit) == text


@given(value=st.floats(allow_nan=False, allow_infinity=False), unit=st.sampled_from(["", "s", "$", "%", "tokens"]))
def test_every_figure_has_a_text(value: float, unit: str) -> None:
    assert figure(value, unit)
