"""Compares each rollout with the mean of the others in its group: leave-one-out, as in RLOO.

Always true: a rollout is not part of its own baseline, so the estimate is unbiased. A group with a single verdict gets
0, as in verl's `rloo_vectorized`; verl's `rloo` uses the raw score.

See https://arxiv.org/abs/2402.14740.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rewardflow.algo.estimator import ScoredOnlyEstimator, ScoredRollouts
from rewardflow.algo.score_statistics import mean
from rewardflow.settings.algorithm_needs import Needs


@dataclass(frozen=True, slots=True)
class LeaveOneOut(ScoredOnlyEstimator):
    """(score - mean) n / (n - 1), which is the score minus the mean of the other n - 1."""

    @property
    def needs(self) -> Needs:
        return "group"

    def estimate(self, groups: ScoredRollouts) -> list[list[float]]:
        return [_against_the_others([scored.total for scored in group]) for group in groups]


def _against_the_others(scores: Sequence[float]) -> list[float]:
    baseline = mean(scores)
    factor = len(scores) / max(1, len(scores) - 1)
    return [(score - baseline) * factor for score in scores]
