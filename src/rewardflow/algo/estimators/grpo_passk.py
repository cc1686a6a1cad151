"""Rewards only the best rollout of a group, by its lead over the second best: GRPO for pass@k.

Always true: at most one rollout of a group has an advantage other than 0, and it is above 0. A group whose two best
scores are equal, or that has one verdict, gets 0.

See https://arxiv.org/abs/2503.19595.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rewardflow.algo.estimator import ScoredOnlyEstimator, ScoredRollouts
from rewardflow.algo.estimators.grpo import Scale, check_scale, divisors
from rewardflow.settings.algorithm_needs import Needs


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfGroup(ScoredOnlyEstimator):
    """The best score minus the second best, divided as `GroupRelative` divides."""

    scale: Scale = "group"

    def __post_init__(self) -> None:
        check_scale(self.scale)

    @property
    def needs(self) -> Needs:
        return "batch" if self.scale == "batch" else "group"

    def estimate(self, groups: ScoredRollouts) -> list[list[float]]:
        totals = [[scored.total for scored in group] for group in groups]
        return [_lead(scores, divisor) for scores, divisor in zip(totals, divisors(self.scale, totals), strict=True)]


def _lead(scores: Sequence[float], divisor: float) -> list[float]:
    advantages = [0.0] * len(scores)
    if len(scores) > 1:
        best, second = sorted(range(len(scores)), key=lambda i: -scores[i])[:2]
        advantages[best] = (scores[best] - scores[second]) / divisor
    return advantages
