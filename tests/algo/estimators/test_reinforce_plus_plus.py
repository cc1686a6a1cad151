"""REINFORCE++: returns are whitened over all tokens of the batch."""

from __future__ import annotations

import pytest
import torch
from algo.groups import scored_group

from rewardflow.algo.estimators.reinforce_plus_plus import (
    WhitenedOutcomes,
    WhitenedReturns,
    returns,
    whitened_tokens,
)


def test_a_return_is_the_reward_and_the_discounted_ones_after_it() -> None:
    rewards_T = torch.tensor([1.0, 0.0, 4.0])
    assert returns(rewards_T, 1.0).tolist() == [5.0, 4.0, 4.0]
    assert returns(rewards_T, 0.5).tolist() == [2.0, 2.0, 4.0]


def test_tokens_are_whitened_over_all_groups_and_keep_their_shapes() -> None:
    tokens = whitened_tokens([[torch.tensor([1.0, 2.0]), torch.tensor([6.0])], [], [torch.tensor([3.0])]])
    assert [[len(one) for one in group] for group in tokens] == [[2, 1], [], [1]]
    together = torch.cat([one for group in tokens for one in group])
    assert (together.mean().item(), together.std().item()) == pytest.approx((0.0, 1.0), abs=1e-6)


def test_longer_responses_count_more_in_what_outcomes_are_whitened_with() -> None:
    [[long, short]] = WhitenedOutcomes()([scored_group(1.0, 0.0, masks=[[1, 1, 1], [1, 0, 0]])])
    assert 3 * long + short == pytest.approx(0.0, abs=1e-9)
    assert long - short == pytest.approx(1 / 0.5, rel=1e-6)  # the standard deviation over tokens


def test_without_a_baseline_a_group_may_have_one_rollout() -> None:
    [[good], [bad]] = WhitenedReturns()([scored_group(1.0, masks=[[1]]), scored_group(0.0, masks=[[1]])])
    assert good.item() == -bad.item() > 0
