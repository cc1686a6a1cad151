"""Computes the delay before a retry, and limits the number of retries.

Always true: retries and hedges together never exceed `share` of the first attempts plus a small reserve, so retries
cannot overload a failing service.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

_RESERVE = 100.0  # so that a small run can retry at all


@dataclass(frozen=True, slots=True)
class RetryStatistics:
    retries: int
    refused: int
    allowance: float


class RetryBudget:
    """First attempts earn an allowance, retries and hedges spend it; at most `savings` are kept for later."""

    def __init__(self, share: float, *, savings: int = 0) -> None:
        self._share = share
        self._most = max(_RESERVE, float(savings))
        self._allowance = _RESERVE
        self._spent = 0
        self._refused = 0

    def earn(self) -> None:
        if self._allowance < self._most:
            self._allowance += self._share

    def spend(self) -> bool:
        """Returns whether one more retry or hedge is allowed, and if so takes it from the allowance."""
        if self._allowance < 1 or self._share == 0:
            self._refused += 1
            return False
        self._allowance -= 1
        self._spent += 1
        return True

    def statistics(self) -> RetryStatistics:
        return RetryStatistics(retries=self._spent, refused=self._refused, allowance=self._allowance)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter, so that calls that failed together are not retried together."""

    first_s: float
    longest_s: float
    rng: random.Random

    def delay_s(self, num_failures: int, retry_after_s: float | None = None) -> float:
        ceiling_s = min(self.longest_s, self.first_s * 2.0 ** min(num_failures - 1, 30))
        if retry_after_s is None:
            return self.rng.uniform(0.0, ceiling_s)
        return retry_after_s + self.rng.uniform(0.0, min(ceiling_s, 1.0))
