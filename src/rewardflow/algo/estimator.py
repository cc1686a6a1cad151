"""What scored rollouts earned, which is all that an estimator of advantages gets to see.

Always true: a failed rollout is in no list here, so it can neither vote nor train; its advantage is 0. A reward stands
on the last sampled token, a penalty on each; tokens that the policy did not sample do not exist.
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
    """What sampled tokens teach, float32: a policy by their advantages, and a critic by their returns."""

    advantages_T: Tensor
    returns_T: Tensor

    def tolist(self) -> list[float]:
        """The advantages, as those of other estimators are written down."""
        advantages: list[float] = self.advantages_T.tolist()
        return advantages


Advantage = float | Tensor | TokenTargets  # for all tokens, or one float32 for each sampled token


@dataclass(frozen=True, slots=True)
class ScoredRollout:
    """The score of one rollout, less `penalty_T`: float64, one for each sampled token, None where there is none."""

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
        """float64, one for each sampled token."""
        rewards_T = torch.zeros(self.num_tokens, dtype=torch.float64)
        rewards_T[-1:] = self.score
        return rewards_T if self.penalty_T is None else rewards_T - self.penalty_T


ScoredRollouts = Sequence[Sequence[ScoredRollout]]


class Estimator(Protocol):
    """The `Advantages` of the flow, which can also take penalties into account."""

    @property
    def needs(self) -> Needs: ...

    def __call__(
        self,
        groups: Sequence[ScoredGroup],
        precomputed_of: PrecomputedOf | None = None,
        penalty_of: PenaltyOf | None = None,
    ) -> Sequence[Sequence[Advantage]]: ...


class ScoredOnlyEstimator(ABC):
    """An `Estimator` that is told what scored rollouts earned, and nothing of the others."""

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
        """One advantage for each rollout of each group."""


def estimate_scored(
    groups: Sequence[ScoredGroup],
    estimate: Callable[[ScoredRollouts], Sequence[Sequence[Advantage]]],
    penalty_of: PenaltyOf | None = None,
) -> list[list[Advantage]]:
    """What `estimate` gives the scored rollouts, and 0 for the others, each in its place."""
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
