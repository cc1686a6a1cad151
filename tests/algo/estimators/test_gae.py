"""GAE: between the one-step surprise and the whole return, against a critic's values."""

from __future__ import annotations

import pytest
import torch

from rewardflow.algo.estimators.gae import AgainstValues, gae
from rewardflow.errors import InvalidInput

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
        AgainstValues(values_of=lambda rollout: VALUES_T, lam=1.5)
