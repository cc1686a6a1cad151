"""Compares each rollout with the mean of its group: group-relative advantages, as in GRPO.

Always true: a group whose scores are all equal gets exactly 0 for each rollout, so later code can recognise and skip
it. So does a group with a single verdict, which has nothing to compare. (verl gives it its raw score, as if the
baseline were 0; here that would make the failure of its siblings change the weights.)

See https://arxiv.org/abs/2402.03300; `scale="none"` is Dr. GRPO, https://arxiv.org/abs/2503.20783.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from rewardflow.algo.estimator import Advantage, ScoredOnlyEstimator, ScoredRollout, ScoredRollouts
from rewardflow.algo.score_statistics import SPREAD_FLOOR, mean, spread
from rewardflow.errors import InvalidInput
from rewardflow.settings.algorithm_needs import Needs
from rewardflow.settings.rules import within

Scale = Literal["group", "batch", "none"]


def check_scale(scale: str) -> None:
    if scale not in get_args(Scale):
        raise InvalidInput(f"scale must be one of {', '.join(get_args(Scale))}, got {scale!r}")


def divisors(scale: Scale, groups: Sequence[Sequence[float]]) -> list[float]:
    """Returns the divisor of each group's differences: the spread of the group, of all groups, or 1."""
    if scale == "none":
        return [1.0] * len(groups)
    if scale == "group":
        return [spread(scores) + SPREAD_FLOOR for scores in groups]
    return [spread([score for scores in groups for score in scores]) + SPREAD_FLOOR] * len(groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRelative(ScoredOnlyEstimator):
    """Score minus the group's mean, divided by the standard deviation of the group, of the whole batch, or by 1.

    With `discount` below 1 an advantage is a float32 tensor with one entry for each sampled token of the response:
    undiscounted on the last one, and discounted once more for each token before it. Tokens that the policy did not
    sample do not count as distance.
    """

    scale: Scale = "group"
    discount: float = 1.0

    def __post_init__(self) -> None:
        check_scale(self.scale)
        within("discount", self.discount, 0.0, 1.0, low_open=True)

    @property
    def needs(self) -> Needs:
        return "batch" if self.scale == "batch" else "group"

    def estimate(self, groups: ScoredRollouts) -> list[list[Advantage]]:
        totals = [[scored.total for scored in group] for group in groups]
        return [
            self._of_group(group, scores, divisor)
            for group, scores, divisor in zip(groups, totals, divisors(self.scale, totals), strict=True)
        ]

    def _of_group(self, group: Sequence[ScoredRollout], scores: Sequence[float], divisor: float) -> list[Advantage]:
        baseline = mean(scores)
        advantages = [(score - baseline) / divisor for score in scores]
        if self.discount == 1.0:
            return list(advantages)
        return [
            _faded(advantage, self.discount, scored.num_tokens)
            for advantage, scored in zip(advantages, group, strict=True)
        ]


def _faded(advantage: float, discount: float, num_tokens: int) -> Tensor:
    distance_T = torch.arange(num_tokens - 1, -1, -1, dtype=torch.float64)
    return (advantage * discount**distance_T).to(torch.float32)
