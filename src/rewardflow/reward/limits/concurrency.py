"""Limits how many calls may be in flight: to a set number, or to a number learnt from the service.

Always true: 1 <= limit <= maximum; the limit grows only while it is used, and shrinks at most once per round trip,
so that one overload, reported by every call in flight, counts once.

The adaptive limit doubles until the service shows strain, and then grows by about its square root each round trip.
Strain is an answer of 5xx, a timeout, or a latency that means queueing. Latency is the mean of a cohort: all calls that
started in one span of time, read once the slowest of them have ended. A mean over the calls that happen to have ended
would favour short calls whenever the number of calls changes, as at the start and the end of every batch.

If the mean doubles over the lowest mean seen, the calls above limit x lowest / mean only wait in the service's queue,
and the limit returns to that number. If latency does not fall after that, the calls were not queueing, and this latency
counts as the service's normal one from then on.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

from rewardflow.errors import InvalidInput

_FIRST_LIMIT = 16
_IN_USE_SHARE = 0.9
_OVERLOAD_FACTOR = 0.5
_LEAST_QUEUE_FACTOR = 0.25
_QUEUEING_RATIO = 2.0
_DEVIATIONS = 1.5  # standard errors by which two means must differ beyond that ratio
_DRAIN = 0.95  # a little below the limit that empties the queue, to measure the lowest latency without a queue
_LEAST_COHORT = 32
_LOWEST_AGEING = 1.0005  # per cohort, so that a lucky mean does not count for ever
_SLOWEST_AGEING = 0.99  # per answer
_RELIEF = 0.9  # shrinking must bring latency below this share, or it was not queueing
_FIRST_ROUND_TRIP_S = 1.0
_HISTORY = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyStatistics:
    limit: int
    latency_s: float | None
    lowest_latency_s: float | None
    history: tuple[tuple[float, int, str], ...]


class _Cohort:
    """The calls that started in one span of time.

    The span ends after `size` answers; the cohort is read once its slowest calls have ended.
    """

    __slots__ = ("_num_seen", "_sum_s", "_sum_s2", "limit", "num_calls", "opened_at", "ready_at", "size")

    def __init__(self, opened_at: float, limit: float) -> None:
        self.opened_at = opened_at
        self.limit = limit
        self.size = max(_LEAST_COHORT, int(limit))
        self.ready_at = math.inf
        self.num_calls = 0
        self._num_seen = 0
        self._sum_s = 0.0
        self._sum_s2 = 0.0

    def add(self, now: float, latency_s: float, slowest_s: float) -> None:
        self._num_seen += 1
        if self._num_seen == self.size:
            self.ready_at = now + slowest_s
        started_at = now - latency_s
        if self.opened_at <= started_at < self.ready_at - slowest_s:
            self.num_calls += 1
            self._sum_s += latency_s
            self._sum_s2 += latency_s * latency_s

    @property
    def is_open(self) -> bool:
        """Whether calls that start now still belong to the cohort."""
        return self.ready_at == math.inf

    @property
    def mean_s(self) -> float:
        return self._sum_s / self.num_calls

    @property
    def error_s(self) -> float:
        """The standard error of the mean."""
        variance = max(0.0, self._sum_s2 / self.num_calls - self.mean_s**2)
        return math.sqrt(variance / self.num_calls)


class Concurrency:
    """The number of calls that may be in flight. `in_flight` includes the call that just ended.

    When a call ends, the limit grows if it was used at any time while that call was in flight; so answers that arrive
    together count alike.
    """

    def __init__(self, limit: int | Literal["auto"], maximum: int = 1024) -> None:
        if limit != "auto" and limit < 1:
            raise InvalidInput(f'limit must be at least 1 or "auto", got {limit!r}')
        if maximum < 1:
            raise InvalidInput(f"maximum must be at least 1, got {maximum!r}")
        self._is_adaptive = limit == "auto"
        self._maximum = maximum
        self._limit = float(min(_FIRST_LIMIT, maximum) if limit == "auto" else limit)
        self._is_doubling = True
        self.limit = int(self._limit)
        self._cohort = _Cohort(-math.inf, self._limit)
        self._used_at = -math.inf
        self._slowest_s = 0.0
        self._latency_s: float | None = None
        self._lowest_s = math.inf
        self._strained_s: float | None = None  # the latency that made the limit shrink, until the next cohort is read
        self._shrink_again_at = -math.inf
        self._history: deque[tuple[float, int, str]] = deque(maxlen=_HISTORY)

    def succeeded(self, now: float, latency_s: float, in_flight: int) -> None:
        """Records a call that was answered."""
        if not self._is_adaptive:
            return
        self._slowest_s = max(latency_s, _SLOWEST_AGEING * self._slowest_s)
        if in_flight >= _IN_USE_SHARE * self.limit:
            self._used_at = now
        is_settling = self._strained_s is not None and self._cohort.is_open
        if now - latency_s <= self._used_at and not is_settling:
            self._grow(now)
        cohort = self._cohort
        if now >= cohort.ready_at:
            self._read(cohort, now)
            self._cohort = _Cohort(now, self._limit)
        else:
            cohort.add(now, latency_s, self._slowest_s)

    def overloaded(self, now: float, in_flight: int) -> None:
        """Records a call that ended in a 5xx or a timeout."""
        if self._is_adaptive and now >= self._shrink_again_at:
            self._shrink(now, _OVERLOAD_FACTOR, self._latency_s or _FIRST_ROUND_TRIP_S, "overloaded")

    def statistics(self) -> ConcurrencyStatistics:
        return ConcurrencyStatistics(
            limit=self.limit,
            latency_s=self._latency_s,
            lowest_latency_s=self._lowest_s if self._lowest_s < math.inf else None,
            history=tuple(self._history),
        )

    def _grow(self, now: float) -> None:
        if self._is_doubling:  # at most to twice the cohort's limit: the latency there must be known first
            self._choose(now, min(self._limit + 1.0, 2.0 * self._cohort.limit), "doubling")
        else:
            self._choose(now, self._limit + 1.0 / math.sqrt(self._limit), "in use")

    def _read(self, cohort: _Cohort, now: float) -> None:
        if cohort.num_calls < _LEAST_COHORT // 2:
            return
        mean_s = self._latency_s = cohort.mean_s
        margin_s = _DEVIATIONS * cohort.error_s
        if self._strained_s is not None and mean_s > _RELIEF * self._strained_s:
            self._lowest_s = mean_s + margin_s
        self._strained_s = None
        self._lowest_s = min(self._lowest_s * _LOWEST_AGEING, mean_s + margin_s)
        if mean_s - margin_s > _QUEUEING_RATIO * self._lowest_s and now >= self._shrink_again_at:
            self._strained_s = mean_s
            self._shrink(now, max(_DRAIN * self._lowest_s / mean_s, _LEAST_QUEUE_FACTOR), mean_s, "queueing")

    def _shrink(self, now: float, factor: float, round_trip_s: float, reason: str) -> None:
        """Shrinks the limit and starts a new cohort.

        The calls in flight were sent under the old limit; their failures and latencies must not shrink it again.
        """
        self._is_doubling = False
        self._shrink_again_at = now + round_trip_s
        self._choose(now, self._limit * factor, reason)
        self._cohort = _Cohort(now, self._limit)

    def _choose(self, now: float, limit: float, reason: str) -> None:
        before, self._limit = self.limit, min(max(limit, 1.0), float(self._maximum))
        self.limit = int(self._limit)
        if self.limit != before:
            self._record(now, reason)

    def _record(self, now: float, reason: str) -> None:
        """Records a change; of consecutive growth only the last entry stays, or it would fill the whole history."""
        if self._history and self._history[-1][2] == reason and reason in ("doubling", "in use"):
            self._history.pop()
        self._history.append((now, self.limit, reason))
