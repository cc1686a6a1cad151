"""Summarises numbers by count, mean, quantiles and maximum.

Always true: a quantile is one of the numbers: the smallest one that is at least as large as its share of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """The summary of some numbers; all but `count` are None if there are none."""

    count: int
    mean: float | None = None
    p10: float | None = None
    p50: float | None = None
    p90: float | None = None
    max: float | None = None

    @classmethod
    def of(cls, values: Iterable[float]) -> Quantiles:
        numbers = sorted(values)
        if not numbers:
            return cls(count=0)
        p10, p50, p90 = (numbers[max(0, math.ceil(share * len(numbers)) - 1)] for share in (0.1, 0.5, 0.9))
        mean = sum(numbers) / len(numbers)
        return cls(count=len(numbers), mean=mean, p10=p10, p50=p50, p90=p90, max=numbers[-1])

    def to_json(self) -> dict[str, float | None]:
        return {
            "count": self.count,
            "mean": self.mean,
            "p10": self.p10,
            "p50": self.p50,
            "p90": self.p90,
            "max": self.max,
        }
