"""ReMax: the greedy response is the baseline, if it has a verdict."""

from __future__ import annotations

import pytest
import torch
from algo.groups import scored_group

from rewardflow.algo.estimators.remax import AgainstGreedy
from rewardflow.errors import InvalidInput


def test_scores_are_compared_with_the_greedy_response_which_itself_gets_zero() -> None:
    assert AgainstGreedy()([scored_group(1.0, 0.25, 0.5, greedy=2)]) == [[0.5, -0.25, 0.0]]


def test_without_the_verdict_on_the_greedy_response_nothing_is_learnt() -> None:
    assert AgainstGreedy()([scored_group(1.0, 0.25, None, greedy=2)]) == [[0.0, 0.0, 0.0]]


def test_a_group_without_a_greedy_response_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"remax needs one greedy rollout in each group, .* got 0 in group 'q'"):
        AgainstGreedy()([scored_group(1.0, 0.25)])


def test_a_penalty_is_paid_by_the_rollout_and_not_by_the_baseline() -> None:
    group = scored_group(1.0, 0.5, masks=[[1, 1], [1, 1]], greedy=1)
    [[advantage, _]] = AgainstGreedy()([group], None, lambda rollout: torch.tensor([0.25, 0.125], dtype=torch.float64))
    torch.testing.assert_close(advantage, torch.tensor([1.0 - 0.375 - 0.5, 1.0 - 0.125 - 0.5]))
