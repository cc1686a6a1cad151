"""Compares rewards with a critic's values, token by token: generalized advantage estimation (GAE).

Always true: the value after the last sampled token is 0, because a response ends there; tokens that the policy did not
sample are left out. Advantages may be whitened over the tokens of the batch; returns, which the critic learns, never.

See https://arxiv.org/abs/1506.02438.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rewardflow.algo.estimator import Advantage, PenaltyOf, ScoredRollouts, TokenTargets, estimate_scored
from rewardflow.algo.estimators.reinforce_plus_plus import whitened_tokens
from rewardflow.errors import InvalidInput
from rewardflow.flow.records import PrecomputedOf
from rewardflow.settings.algorithm_needs import Needs
from rewardflow.settings.rules import within
from rewardflow.types import Rollout, ScoredGroup

ValuesOf = Callable[[Rollout], Tensor]


def gae(rewards_T: Tensor, values_T: Tensor, discount: float, lam: float) -> tuple[Tensor, Tensor]:
    """Returns unwhitened advantages and returns of the sampled tokens of one response."""
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
class AgainstValues:
    """Uses the critic's value before each sampled token, which the trainer precomputes along with the log-probs."""

    discount: float = 1.0
    lam: float = 1.0
    whiten: bool = True

    def __post_init__(self) -> None:
        within("discount", self.discount, 0.0, 1.0, low_open=True)
        within("lam", self.lam, 0.0, 1.0)

    @property
    def needs(self) -> Needs:
        return "batch" if self.whiten else "group"

    def __call__(
        self,
        groups: Sequence[ScoredGroup],
        precomputed_of: PrecomputedOf | None = None,
        penalty_of: PenaltyOf | None = None,
    ) -> list[list[Advantage]]:
        def values_of(rollout: Rollout) -> Tensor:
            values = None if precomputed_of is None else precomputed_of(rollout).values
            if values is None:
                raise InvalidInput(
                    "gae compares with a critic's values, computed before a step's first update, "
                    f"got none for rollout {rollout.index} of group {rollout.group_id!r}"
                )
            return torch.as_tensor(values).cpu()

        return estimate_scored(groups, lambda scored: self._estimate(scored, values_of), penalty_of)

    def _estimate(self, groups: ScoredRollouts, values_of: ValuesOf) -> list[list[Advantage]]:
        found = [
            [gae(scored.rewards_T(), values_of(scored.rollout), self.discount, self.lam) for scored in group]
            for group in groups
        ]
        advantages = [[advantages_T for advantages_T, _ in group] for group in found]
        if self.whiten:
            advantages = whitened_tokens(advantages)
        return [
            [
                TokenTargets(advantages_T.float(), returns_T.float())
                for advantages_T, (_, returns_T) in zip(of_group, group, strict=True)
            ]
            for of_group, group in zip(advantages, found, strict=True)
        ]
