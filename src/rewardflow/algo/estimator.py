"""Defines the estimator of advantages, and the scored rollouts that it works on.

Always true: estimators never see a failed rollout, so it affects no other one; its advantage is 0. The score counts at
the last sampled token, a penalty at each; tokens that the policy did not sample are left out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from rewardflow.errors import InvalidInput
from rewardflow.flow.records import PrecomputedOf, num_sampled_tokens
from rewardflow.settings.algorithm_needs import Needs
from rewardflow.types import Rollout, ScoredGroup

PenaltyOf = Callable[[Rollout], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class TokenTargets:
    """The targets of the sampled tokens, in float32: advantages for the policy, returns for a critic."""

    advantages_T: Tensor
    returns_T: Tensor

    def tolist(self) -> list[float]:
        """Returns the advantages alone, in the form that other estimators have on file."""
        advantages: list[float] = self.advantages_T.tolist()
        return advantages


Advantage = float | Tensor | TokenTargets  # one number for all tokens, or one float32 for each sampled token


@dataclass(frozen=True, slots=True)
class ScoredRollout:
    """A rollout with its score. `penalty_T` is subtracted from it: float64, one for each sampled token, or None."""

    rollout: Rollout
    score: float
    penalty_T: Tensor | None = None

    @property
    def total(self) -> float:
        return self.score if self.penalty_T is None else self.score - self.penalty_T.sum().item()

    @property
    def num_tokens(self) -> int:
        return num_sampled(self.rollout)

    def rewards_T(self) -> Tensor:
        """Returns float64 rewards, one for each sampled token."""
        rewards_T = torch.zeros(self.num_tokens, dtype=torch.float64)
        rewards_T[-1:] = self.score
        return rewards_T if self.penalty_T is None else rewards_T - self.penalty_T


ScoredRollouts = Sequence[Sequence[ScoredRollout]]


class Estimator(Protocol):
    """The flow's `Advantages`, which can also subtract penalties."""

    @property
    def needs(self) -> Needs: ...

    def __call__(
        self,
        groups: Sequence[ScoredGroup],
        precomputed_of: PrecomputedOf | None = None,
        penalty_of: PenaltyOf | None = None,
    ) -> Sequence[Sequence[Advantage]]: ...


class ScoredOnlyEstimator(ABC):
    """An `Estimator` that sees only the scored rollouts of each group."""

    __slots__ = ()

    def __call__(
        self,
        groups: Sequence[ScoredGroup],
        precomputed_of: PrecomputedOf | None = None,
        penalty_of: PenaltyOf | None = None,
    ) -> list[list[Advantage]]:
        return estimate_scored(groups, self.estimate, penalty_of)

    @abstractmethod
    def estimate(self, groups: ScoredRollouts) -> Sequence[Sequence[Advantage]]:
        """Returns one advantage for each rollout of each group."""


def estimate_scored(
    groups: Sequence[ScoredGroup],
    estimate: Callable[[ScoredRollouts], Sequence[Sequence[Advantage]]],
    penalty_of: PenaltyOf | None = None,
) -> list[list[Advantage]]:
    """Calls `estimate` with the scored rollouts; returns its advantages in place, and 0 for failed rollouts."""
    scored = [
        [
            ScoredRollout(rollout, reward.value, None if penalty_of is None else penalty_of(rollout))
            for rollout, reward in zip(group.rollouts, group.rewards, strict=True)
            if reward.value is not None
        ]
        for group in groups
    ]
    found = [iter(advantages) for advantages in estimate(scored)]
    return [
        [0.0 if reward.value is None else next(advantages) for reward in group.rewards]
        for group, advantages in zip(groups, found, strict=True)
    ]


def num_sampled(rollout: Rollout) -> int:
    if rollout.response_mask is None:
        raise InvalidInput(
            "advantages that differ by token or by length need the response_mask of every rollout, to know its sampled "
            f"tokens, got none for rollout {rollout.index} of group {rollout.group_id!r}"
        )
    return num_sampled_tokens(rollout)
