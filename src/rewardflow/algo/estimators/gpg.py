"""Centres scores and scales them up by the share of rollouts that score 0: the advantages of GPG.

Always true: a group whose scores are all equal, or with one verdict, gets exactly 0. The factor counts the scored
rollouts of the whole batch, including those of such groups.

See https://arxiv.org/abs/2504.02546.
"""

from __future__ import annotations

from dataclasses import dataclass

from rewardflow.algo.estimator import ScoredOnlyEstimator, ScoredRollouts
from rewardflow.algo.score_statistics import mean
from rewardflow.settings.algorithm_needs import Needs


@dataclass(frozen=True, slots=True)
class NonzeroScaled(ScoredOnlyEstimator):
    """(score - mean of the group) * scored rollouts of the batch / those whose score is not 0."""

    @property
    def needs(self) -> Needs:
        return "batch"

    def estimate(self, groups: ScoredRollouts) -> list[list[float]]:
        totals = [[scored.total for scored in group] for group in groups]
        num_scores = sum(len(scores) for scores in totals)
        num_nonzero = sum(score != 0 for scores in totals for score in scores)
        factor = num_scores / max(1, num_nonzero)
        return [[factor * (score - baseline) for score in scores] for scores in totals for baseline in [mean(scores)]]
