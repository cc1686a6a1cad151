"""Measures calibration: whether answers with a score of 0.7 are good in 7 of 10 cases.

Always true: every score on 0 to 1 is in exactly one bin; scores outside have no calibration, and so no figure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rewardflow.judging.agreement import ScorePair

NUM_BINS = 10


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """The answers with scores from `low` to `high`: how many, their mean score, and their mean label."""

    low: float
    high: float
    count: int
    mean_score: float
    mean_label: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """`error` is the mean distance between score and label over the bins, weighted by their counts; `brier` is the
    mean squared distance over the answers.
    """

    error: float
    brier: float
    bins: tuple[CalibrationBin, ...]

    def to_json(self) -> dict[str, Any]:
        bins = [
            {
                "low": one.low,
                "high": one.high,
                "count": one.count,
                "mean_score": one.mean_score,
                "mean_label": one.mean_label,
            }
            for one in self.bins
        ]
        return {"error": self.error, "brier": self.brier, "bins": bins}


def calibration_of(pairs: Sequence[ScorePair]) -> Calibration | None:
    """Returns the calibration of scores against labels, both on 0 to 1; None if there are none or one lies outside."""
    if not pairs or any(not 0 <= value <= 1 for pair in pairs for value in (pair.score, pair.other)):
        return None
    by_bin: dict[int, list[ScorePair]] = {}
    for pair in pairs:
        by_bin.setdefault(min(int(pair.score * NUM_BINS), NUM_BINS - 1), []).append(pair)
    bins = tuple(
        CalibrationBin(
            low=number / NUM_BINS,
            high=(number + 1) / NUM_BINS,
            count=len(members),
            mean_score=math.fsum(pair.score for pair in members) / len(members),
            mean_label=math.fsum(pair.other for pair in members) / len(members),
        )
        for number, members in sorted(by_bin.items())
    )
    error = math.fsum(one.count * abs(one.mean_score - one.mean_label) for one in bins) / len(pairs)
    brier = math.fsum((pair.score - pair.other) ** 2 for pair in pairs) / len(pairs)
    return Calibration(error, brier, bins)
