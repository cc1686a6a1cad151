"""Means, spreads and whitening, exact where values are equal."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.algo.score_statistics import mean, spread, whitened


@given(score=st.floats(-1e6, 1e6), count=st.integers(1, 30))
def test_equal_scores_have_exactly_that_mean_and_no_spread(score: float, count: int) -> None:
    assert mean([score] * count) == score
    assert spread([score] * count) == 0.0


def test_of_no_scores_mean_and_spread_are_zero() -> None:
    assert (mean([]), spread([]), spread([3.0])) == (0.0, 0.0, 0.0)


def test_a_value_that_counts_several_times_is_that_many_values() -> None:
    values_N, counts_N = torch.tensor([1.0, 4.0, -2.0]), torch.tensor([3, 1, 2])
    repeated = whitened(torch.repeat_interleave(values_N, counts_N), torch.ones(6))
    torch.testing.assert_close(torch.repeat_interleave(whitened(values_N, counts_N), counts_N), repeated)
    assert repeated.mean().item() == pytest.approx(0.0, abs=1e-12)
    assert repeated.std().item() == pytest.approx(1.0)


@given(value=st.floats(-1e6, 1e6), count=st.integers(1, 9))
def test_equal_values_whiten_to_exactly_zero(value: float, count: int) -> None:
    assert not whitened(torch.full((count,), value, dtype=torch.float64), torch.ones(count)).any()


def test_what_does_not_count_does_not_matter() -> None:
    assert not whitened(torch.tensor([1.0, 1.0, 5.0]), torch.tensor([1, 1, 0]))[:2].any()
    assert not whitened(torch.tensor([5.0]), torch.tensor([0])).any()
    assert len(whitened(torch.empty(0), torch.empty(0))) == 0
