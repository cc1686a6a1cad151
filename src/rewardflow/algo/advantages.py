"""How much better than its siblings a rollout was: group-relative advantages, as in GRPO.

Always true: baseline and spread are taken over scored rollouts alone, a failed one gets exactly 0; a group whose scores
are all equal gets exactly 0 throughout, so that it can be recognised and skipped.

A group with a single verdict is such a group: nothing to compare, nothing to learn. (verl gives it its bare score, as
if the baseline were 0; here that would turn the failure of its siblings into a push.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from rewardflow.config.rules import within
from rewardflow.config.tree import AlgorithmSettings
from rewardflow.errors import InvalidInput
from rewardflow.flow.records import LogProbsOf
from rewardflow.flow.seams import Advantages
from rewardflow.types import Rollout, ScoredGroup

Scale = Literal["group", "batch", "none"]

SPREAD_FLOOR = 1e-6  # added to a spread before it divides


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRelative:
    """Score minus the group's mean, divided by the spread of the group, of the whole batch, or by nothing.

    With `discount` below 1 an advantage is a float32 tensor with one entry for each sampled token of the response:
    whole on the last one, fading with each token before it. Tokens that were not sampled do not count as distance.
    """

    scale: Scale
    discount: float

    def __post_init__(self) -> None:
        if self.scale not in get_args(Scale):
            raise InvalidInput(f"scale must be one of {', '.join(get_args(Scale))}, got {self.scale!r}")
        within("discount", self.discount, 0.0, 1.0, low_open=True)

    @property
    def needs(self) -> Literal["group", "mini_batch", "batch"]:
        return "batch" if self.scale == "batch" else "group"

    def __call__(
        self, groups: Sequence[ScoredGroup], log_probs_of: LogProbsOf | None = None
    ) -> Sequence[Sequence[float | Tensor]]:
        scores_by_group = [_scores(group) for group in groups]
        of_batch = _spread([score for scores in scores_by_group for score in scores]) if self.scale == "batch" else 0.0
        return [
            self._of_group(group, _mean(scores), self._divisor(scores, of_batch))
            for group, scores in zip(groups, scores_by_group, strict=True)
        ]

    def _divisor(self, scores: Sequence[float], spread_of_batch: float) -> float:
        if self.scale == "none":
            return 1.0
        return (_spread(scores) if self.scale == "group" else spread_of_batch) + SPREAD_FLOOR

    def _of_group(self, group: ScoredGroup, baseline: float, divisor: float) -> list[float | Tensor]:
        advantages = [0.0 if reward.value is None else (reward.value - baseline) / divisor for reward in group.rewards]
        if self.discount == 1.0:
            return list(advantages)
        return [
            _faded(advantage, self.discount, rollout)
            for advantage, rollout in zip(advantages, group.rollouts, strict=True)
        ]


def make_advantages(settings: AlgorithmSettings) -> Advantages:
    return GroupRelative(scale=settings.scale, discount=settings.discount)


def _scores(group: ScoredGroup) -> list[float]:
    return [reward.value for reward in group.rewards if reward.value is not None]


def _mean(scores: Sequence[float]) -> float:
    """Of equal scores exactly that score, which a sum that was rounded and divided need not be."""
    if not scores:
        return 0.0
    return scores[0] if min(scores) == max(scores) else math.fsum(scores) / len(scores)


def _spread(scores: Sequence[float]) -> float:
    """The unbiased standard deviation; of fewer than two scores, 0."""
    if len(scores) < 2:
        return 0.0
    mean = _mean(scores)
    return math.sqrt(math.fsum((score - mean) * (score - mean) for score in scores) / (len(scores) - 1))


def _faded(advantage: float, discount: float, rollout: Rollout) -> Tensor:
    if rollout.response_mask is None:
        raise InvalidInput(
            "a discount below 1 needs the response_mask of every rollout, to know its sampled tokens, "
            f"got none for rollout {rollout.index} of group {rollout.group_id!r}, discount={discount}"
        )
    num_sampled = sum(1 for sampled in rollout.response_mask if sampled)
    distance_T = torch.arange(num_sampled - 1, -1, -1, dtype=torch.float64)
    return (advantage * discount**distance_T).to(torch.float32)
