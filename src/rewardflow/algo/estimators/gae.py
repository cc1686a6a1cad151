"""Advantages against a critic's values, token by token: generalized advantage estimation.

Always true: the value after the last sampled token is 0, because a response ends there; tokens that the policy did not
sample do not exist. Advantages are whitened over the tokens of the batch; returns, which the critic learns, are not.

See https://arxiv.org/abs/1506.02438.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rewardflow.algo.earned import Advantage, EarnedGroups, OverScored
from rewardflow.algo.estimators.reinforce_plus_plus import whitened_tokens
from rewardflow.config.algorithms import Needs
from rewardflow.config.rules import within
from rewardflow.errors import InvalidInput
from rewardflow.types import Rollout


def gae(rewards_T: Tensor, values_T: Tensor, discount: float, lam: float) -> tuple[Tensor, Tensor]:
    """Advantages, not whitened, and returns, of the sampled tokens of one response."""
    if rewards_T.shape != values_T.shape:
        raise InvalidInput(
            "a critic must give one value for each sampled token, "
            f"got {tuple(values_T.shape)} values for {tuple(rewards_T.shape)} tokens"
        )
    values_T = values_T.detach().to(rewards_T.dtype)
    advantages_T = torch.zeros_like(rewards_T)
    next_value = later = torch.zeros((), dtype=rewards_T.dtype)
    for t in reversed(range(len(rewards_T))):
        surprise = rewards_T[t] + discount * next_value - values_T[t]
        later = advantages_T[t] = surprise + discount * lam * later
        next_value = values_T[t]
    return advantages_T, advantages_T + values_T


@dataclass(frozen=True, slots=True, kw_only=True)
class AgainstValues(OverScored):
    """`values_of` gives the critic's value at each sampled token of a rollout, before the token was chosen."""

    values_of: Callable[[Rollout], Tensor]
    discount: float = 1.0
    lam: float = 1.0

    def __post_init__(self) -> None:
        within("discount", self.discount, 0.0, 1.0, low_open=True)
        within("lam", self.lam, 0.0, 1.0)

    @property
    def needs(self) -> Needs:
        return "batch"

    def estimate(self, groups: EarnedGroups) -> list[list[Advantage]]:
        return whitened_tokens(
            [
                [
                    gae(earned.rewards_T(), self.values_of(earned.rollout).cpu(), self.discount, self.lam)[0]
                    for earned in group
                ]
                for group in groups
            ]
        )
