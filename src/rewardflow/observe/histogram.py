"""Summarises many non-negative numbers: quantiles to within 1 %, in a few hundred counters for any number of values.

Always true: count, sum, min and max are exact; a quantile is within `RELATIVE_ERROR` of the exact one; merging
histograms, in any order, gives the histogram of all their numbers.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from math import ceil, log  # by name, because `add` runs once per call
from typing import Any

from rewardflow.errors import InvalidInput

RELATIVE_ERROR = 0.01

# Bucket i holds (gamma^(i-1), gamma^i]; its estimate is the point whose relative distance to both ends is the same.
# The width aims at a slightly smaller error, so that rounding in log and exp cannot exceed RELATIVE_ERROR.
_WIDTH_ERROR = RELATIVE_ERROR * 0.999
_LOG_GAMMA = log((1 + _WIDTH_ERROR) / (1 - _WIDTH_ERROR))
_PER_LOG = 1 / _LOG_GAMMA
_LOG_CENTRE = math.log1p(-_WIDTH_ERROR)
_MAX_LOG = log(sys.float_info.max)
_LARGEST = sys.float_info.max
_SMALLEST = sys.float_info.min  # smaller floats lose precision, and no measured value is that small


class Histogram:
    """Counts non-negative numbers in buckets of logarithmic size. Not thread-safe: one writer."""

    __slots__ = ("_buckets", "_max", "_min", "_zeros", "count", "sum")

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0.0
        self._min = math.inf
        self._max = -math.inf
        self._zeros = 0
        self._buckets: dict[int, int] = {}

    def add(self, value: float) -> None:
        if not 0.0 <= value <= _LARGEST:
            raise InvalidInput(f"a histogram holds finite numbers of at least 0, got {value!r}")
        if value >= _SMALLEST:
            bucket = ceil(log(value) * _PER_LOG)
            buckets = self._buckets
            buckets[bucket] = buckets.get(bucket, 0) + 1
        else:
            self._zeros += 1
        self.count += 1
        self.sum += value
        if value < self._min:
            self._min = value
        if value > self._max:
            self._max = value

    @property
    def min(self) -> float | None:
        return self._min if self.count else None

    @property
    def max(self) -> float | None:
        return self._max if self.count else None

    @property
    def mean(self) -> float | None:
        return self.sum / self.count if self.count else None

    def quantile(self, q: float) -> float | None:
        """Returns the smallest number that at least a share `q` of all do not exceed; None for an empty histogram."""
        if not 0.0 <= q <= 1.0:
            raise InvalidInput(f"a quantile must lie in [0, 1], got {q!r}")
        if not self.count:
            return None
        rank = ceil(q * self.count) or 1
        if rank == 1 or rank <= self._zeros:
            return self._min
        if rank == self.count:
            return self._max
        seen = self._zeros
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if rank <= seen:
                return min(max(_estimate(bucket), self._min), self._max)
        raise AssertionError("the buckets hold fewer numbers than were counted")

    def points(self) -> Iterator[tuple[float, int]]:
        """Yields numbers in ascending order, each with how many values lie within the error of it."""
        if self._zeros:
            yield self._min, self._zeros
        for bucket in sorted(self._buckets):
            yield min(max(_estimate(bucket), self._min), self._max), self._buckets[bucket]

    def merge(self, other: Histogram) -> None:
        """Adds all numbers of the other histogram."""
        for bucket, count in other._buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self._zeros += other._zeros
        self.count += other.count
        self.sum += other.sum
        self._min = min(self._min, other._min)
        self._max = max(self._max, other._max)

    def to_json(self) -> dict[str, Any]:
        return {
            "relative_error": RELATIVE_ERROR,
            "count": self.count,
            "sum": self.sum,
            "min": self.min,
            "max": self.max,
            "zeros": self._zeros,
            "buckets": {str(bucket): self._buckets[bucket] for bucket in sorted(self._buckets)},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Histogram:
        if data.get("relative_error") != RELATIVE_ERROR:
            raise InvalidInput(
                f"a histogram must have a relative error of {RELATIVE_ERROR}, got {data.get('relative_error')!r}"
            )
        histogram = cls()
        try:
            histogram.count, histogram.sum = int(data["count"]), float(data["sum"])
            if histogram.count:
                histogram._min, histogram._max = float(data["min"]), float(data["max"])
            histogram._zeros = int(data["zeros"])
            histogram._buckets = {int(bucket): int(count) for bucket, count in data["buckets"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInput(f"a histogram needs count, sum, min, max, zeros and buckets: {error!r}") from error
        if histogram.count != histogram._zeros + sum(histogram._buckets.values()):
            raise InvalidInput(
                f"a histogram's buckets must hold as many numbers as it counts, got count={histogram.count}, "
                f"zeros={histogram._zeros} and {sum(histogram._buckets.values())} in buckets"
            )
        return histogram

    def __eq__(self, other: object) -> bool:
        return self.to_json() == other.to_json() if isinstance(other, Histogram) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # a histogram is mutable

    def __repr__(self) -> str:
        return f"Histogram(count={self.count}, min={self.min}, p50={self.quantile(0.5)}, max={self.max})"


def _estimate(bucket: int) -> float:
    # gamma^i (1 - error): within the error of both ends of the bucket.
    return math.exp(min(bucket * _LOG_GAMMA + _LOG_CENTRE, _MAX_LOG))
