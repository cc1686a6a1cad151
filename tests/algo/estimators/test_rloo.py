"""Leave-one-out: each rollout is compared with the mean of the others."""

from __future__ import annotations

import pytest
from algo.groups import scored_group
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.algo.estimators.rloo import LeaveOneOut


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=8))
def test_an_advantage_is_the_score_minus_the_mean_of_the_others(scores: list[float]) -> None:
    [advantages] = LeaveOneOut()([scored_group(*scores)])
    others = [(sum(scores) - score) / (len(scores) - 1) for score in scores]
    expected = [score - mean for score, mean in zip(scores, others, strict=True)]
    assert list(advantages) == pytest.approx(expected, abs=1e-9)
