"""OPO: the baseline is the group's mean, weighted by length."""

from __future__ import annotations

from algo.groups import scored_group

from rewardflow.algo.estimators.opo import LengthWeighted


def test_longer_responses_weigh_more_in_the_baseline() -> None:
    group = scored_group(1.0, 0.0, None, masks=[[1, 1, 1], [1, 0, 0], [1, 1, 1]])
    assert LengthWeighted()([group]) == [[0.25, -0.75, 0.0]]


def test_responses_without_sampled_tokens_teach_nothing() -> None:
    assert LengthWeighted()([scored_group(1.0, 0.0, masks=[[0], [0]])]) == [[0.0, 0.0]]
