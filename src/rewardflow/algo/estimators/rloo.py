"""How much better than the mean of the others a rollout was: leave-one-out, as in RLOO.

Always true: a rollout has no part in its own baseline, so the estimate is unbiased. A group with a single verdict gets
0, as in verl's `rloo_vectorized`; its `rloo` uses the bare score.

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
    share = len(scores) / max(1, len(scores) - 1)
    return [(score - baseline) * share for score in scores]
