"""Means and spreads of scores, in float64.

Always true: of equal values the mean is exactly that value, so what is centred or whitened with it is exactly 0 and can
be recognised and skipped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

SPREAD_FLOOR = 1e-6  # added to a spread before it divides
VARIANCE_FLOOR = 1e-8  # added to a variance before its root divides


def mean(scores: Sequence[float]) -> float:
    """Of none, 0. Of equal scores exactly that score, which a sum that was rounded and divided need not be."""
    if not scores:
        return 0.0
    return scores[0] if min(scores) == max(scores) else math.fsum(scores) / len(scores)


def spread(scores: Sequence[float]) -> float:
    """The unbiased standard deviation; of fewer than two scores, 0."""
    if len(scores) < 2:
        return 0.0
    centre = mean(scores)
    return math.sqrt(math.fsum((score - centre) * (score - centre) for score in scores) / (len(scores) - 1))


def whitened(values_N: Tensor, counts_N: Tensor) -> Tensor:
    """Centred and divided by the spread, where `values_N[i]` stands for `counts_N[i]` equal values; float64."""
    values_N, counts_N = values_N.double(), counts_N.double()
    present = values_N[counts_N > 0]
    total = counts_N.sum()
    if total < 2 or (present == present[0]).all():
        return torch.zeros_like(values_N)
    centred_N = values_N - (counts_N * values_N).sum() / total
    variance = (counts_N * centred_N.square()).sum() / (total - 1)
    return centred_N * torch.rsqrt(variance + VARIANCE_FLOOR)
