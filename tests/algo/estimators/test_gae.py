"""GAE: between the one-step surprise and the whole return, against a critic's values."""

from __future__ import annotations

import pytest
import torch
from algo.groups import scored_group

from rewardflow.algo.estimator import TokenTargets
from rewardflow.algo.estimators.gae import AgainstValues, gae
from rewardflow.errors import InvalidInput
from rewardflow.flow.records import Precomputed
from rewardflow.types import Rollout

REWARDS_T, VALUES_T = torch.tensor([0.0, 0.5, 2.0]), torch.tensor([1.0, 0.5, -1.0])


def test_without_lambda_an_advantage_is_the_surprise_of_one_step() -> None:
    advantages_T, returns_T = gae(REWARDS_T, VALUES_T, discount=0.5, lam=0.0)
    torch.testing.assert_close(advantages_T, torch.tensor([0.25 - 1.0, 0.5 - 0.5 - 0.5, 2.0 + 1.0]))
    torch.testing.assert_close(returns_T, advantages_T + VALUES_T)


def test_with_lambda_one_it_is_the_return_minus_the_value() -> None:
    advantages_T, returns_T = gae(REWARDS_T, VALUES_T, discount=0.5, lam=1.0)
    torch.testing.assert_close(returns_T, torch.tensor([0.75, 1.5, 2.0]))
    torch.testing.assert_close(advantages_T, returns_T - VALUES_T)


def test_values_keep_no_gradient() -> None:
    advantages_T, returns_T = gae(REWARDS_T, VALUES_T.clone().requires_grad_(), discount=1.0, lam=1.0)
    assert not advantages_T.requires_grad
    assert not returns_T.requires_grad


def test_values_for_another_number_of_tokens_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"one value for each sampled token, got \(2,\) values for \(3,\) tokens"):
        gae(REWARDS_T, VALUES_T[:2], discount=1.0, lam=1.0)


def test_a_lambda_beyond_one_is_refused() -> None:
    with pytest.raises(InvalidInput, match="lam must be"):
        AgainstValues(lam=1.5)


def test_a_rollout_without_values_is_refused_and_a_failed_one_needs_none() -> None:
    group = scored_group(1.0, None, masks=[[1, 1, 1], [1, 1, 1]])

    def precomputed_of(rollout: Rollout) -> Precomputed:
        return Precomputed(values=VALUES_T if rollout.index == 0 else None)

    [[targets, failed]] = AgainstValues(whiten=False, lam=0.5)([group], precomputed_of)
    assert isinstance(targets, TokenTargets)
    assert failed == 0.0
    with pytest.raises(InvalidInput, match=r"gae compares with a critic's values, .* got none for rollout 0 of group"):
        AgainstValues()([scored_group(1.0, masks=[[1]])], lambda rollout: Precomputed())


def test_whitened_advantages_have_mean_0_and_spread_1_and_returns_stay_as_they_are() -> None:
    groups = [scored_group(1.0, 0.0, masks=[[1, 1, 1], [1, 1, 1]]), scored_group(0.5, masks=[[1, 1, 1]])]
    precomputed = {"values": VALUES_T}
    plain, white = (
        [one for group in AgainstValues(whiten=whiten)(groups, lambda _: Precomputed(**precomputed)) for one in group]
        for whiten in (False, True)
    )
    advantages_N = torch.cat([one.advantages_T for one in white])
    assert advantages_N.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert advantages_N.std().item() == pytest.approx(1.0, rel=1e-5)
    for one, other in zip(plain, white, strict=True):
        torch.testing.assert_close(one.returns_T, other.returns_T)
        torch.testing.assert_close(one.advantages_T, one.returns_T - VALUES_T)
