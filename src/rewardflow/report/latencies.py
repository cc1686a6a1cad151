"""Turns a distribution of latencies into a few bars on a logarithmic axis, which all compared runs share.

Always true: the bars of a run add up to 1; a bar's text is the latency at its middle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rewardflow.drawing.scales import seconds
from rewardflow.observe.histogram import Histogram

NUM_BARS = 36
_LEAST_S = 1e-6


@dataclass(frozen=True, slots=True)
class LatencyShares:
    texts: list[str]
    values: list[list[float]]  # of each run


def latency_shares(histograms: Sequence[Histogram]) -> LatencyShares | None:
    """Returns the bars; None if no call was timed."""
    there = [one for one in histograms if one.count and one.max]
    if not there:
        return None
    low = math.log(max(_LEAST_S, min(one.quantile(0.001) or _LEAST_S for one in there)))
    high = max(math.log(max(one.max or 0.0 for one in there)), low + 0.1)
    width = (high - low) / NUM_BARS
    texts = [seconds(math.exp(low + (place + 0.5) * width)) for place in range(NUM_BARS)]
    return LatencyShares(texts, [_shares(one, low, width) for one in histograms])


def _shares(histogram: Histogram, low: float, width: float) -> list[float]:
    shares = [0.0] * NUM_BARS
    for value, count in histogram.points():
        place = int((math.log(value) - low) / width) if value > _LEAST_S else 0
        shares[min(max(place, 0), NUM_BARS - 1)] += count / histogram.count
    return shares
