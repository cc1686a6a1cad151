"""Computes means, standard deviations and whitened values of scores, in float64.

Always true: the mean of equal values is exactly that value, so centring or whitening them gives exactly 0, which later
code can recognise and skip.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

SPREAD_FLOOR = 1e-6  # added to a standard deviation before dividing by it
VARIANCE_FLOOR = 1e-8  # added to a variance before dividing by its root


def mean(scores: Sequence[float]) -> float:
    """Returns 0 for no scores, and exactly the score if all are equal, which a rounded sum might miss."""
    if not scores:
        return 0.0
    return scores[0] if min(scores) == max(scores) else math.fsum(scores) / len(scores)


def spread(scores: Sequence[float]) -> float:
    """Returns the unbiased standard deviation; 0 for fewer than two scores."""
    if len(scores) < 2:
        return 0.0
    centre = mean(scores)
    return math.sqrt(math.fsum((score - centre) * (score - centre) for score in scores) / (len(scores) - 1))


def whitened(values_N: Tensor, counts_N: Tensor) -> Tensor:
    """Centres and divides by the standard deviation, counting `values_N[i]` as `counts_N[i]` equal values; float64."""
    values_N, counts_N = values_N.double(), counts_N.double()
    present = values_N[counts_N > 0]
    total = counts_N.sum()
    if total < 2 or (present == present[0]).all():
        return torch.zeros_like(values_N)
    centred_N = values_N - (counts_N * values_N).sum() / total
    variance = (counts_N * centred_N.square()).sum() / (total - 1)
    return centred_N * torch.rsqrt(variance + VARIANCE_FLOOR)
