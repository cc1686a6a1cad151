"""Compares each rollout with the length-weighted mean of its group: the baseline of OPO.

Always true: a group whose scores are all equal, or with one verdict, gets exactly 0.

See https://arxiv.org/abs/2505.23585.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rewardflow.algo.estimator import ScoredOnlyEstimator, ScoredRollout, ScoredRollouts
from rewardflow.settings.algorithm_needs import Needs


@dataclass(frozen=True, slots=True)
class LengthWeighted(ScoredOnlyEstimator):
    """Score minus the mean of the group's scores, each weighted by the sampled tokens of its response."""

    @property
    def needs(self) -> Needs:
        return "group"

    def estimate(self, groups: ScoredRollouts) -> list[list[float]]:
        return [_centred(group) for group in groups]


def _centred(group: Sequence[ScoredRollout]) -> list[float]:
    scores = [scored.total for scored in group]
    lengths = [scored.num_tokens for scored in group]
    num_tokens = sum(lengths)
    if not num_tokens or min(scores) == max(scores):
        return [0.0] * len(scores)
    baseline = math.fsum(length * score for length, score in zip(lengths, scores, strict=True)) / num_tokens
    return [score - baseline for score in scores]
