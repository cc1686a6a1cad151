"""Enforces limits as a provider does: calls at once, requests a minute, tokens a minute.

Always true: a call is admitted only if all three limits have room for it, and otherwise takes from none of them; the
headers hold wall-clock rates and times, so that a client need not know `scale`.

A rate is a token bucket that fills steadily and holds `burst_s` seconds' worth. A call that needs more tokens than a
full bucket holds is admitted when the bucket is full, and later calls wait until the bucket is above zero again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from rewardflow.mock_judge.settings import MockJudgeSettings

_ROUNDING = 1e-6  # of float times: a client that waits exactly as long as Retry-After says must be admitted

LimitName = Literal["concurrency", "requests", "tokens"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """The limit that had no room, and for how long. None for concurrency: nobody knows when a call ends."""

    limit: LimitName
    retry_after_s: float | None


class Bucket:
    """A token bucket: `limit` units in `period_s`; holds `burst_s` seconds' worth, at least one unit."""

    def __init__(self, limit: float, *, period_s: float, burst_s: float) -> None:
        self.per_s = limit / period_s
        self.capacity = max(1.0, self.per_s * burst_s)
        self._level = self.capacity
        self._level_at_s = -math.inf

    def wait_s(self, now_s: float, amount: float) -> float:
        """Returns the seconds until this amount can be taken; 0 if it can be taken now."""
        missing = min(amount, self.capacity) - self.level(now_s)
        return 0.0 if missing <= _ROUNDING else missing / self.per_s

    def take(self, now_s: float, amount: float) -> None:
        """Takes an amount, even if the bucket holds less. A negative amount gives back."""
        self._level = min(self.capacity, self.level(now_s) - amount)

    def level(self, now_s: float) -> float:
        if now_s > self._level_at_s:
            elapsed_s = now_s - self._level_at_s
            self._level = min(self.capacity, self._level + elapsed_s * self.per_s)
            self._level_at_s = now_s
        return self._level


class Limits:
    """The limits of one account. Times are the event loop's."""

    def __init__(self, settings: MockJudgeSettings) -> None:
        period_s, burst_s = 60.0 * settings.scale, settings.burst_s * settings.scale
        self._max_concurrency = settings.max_concurrency
        self._says_retry_after = settings.says_retry_after
        self._says_limits = settings.says_limits
        self._num_admitted = 0
        self._requests = _bucket(settings.rpm, period_s, burst_s)
        self._tokens = _bucket(settings.tpm, period_s, burst_s)

    def admit(self, now_s: float, tokens: int) -> Refusal | None:
        """Admits a call that may use this many tokens, or returns the refusal. An admitted call must `leave`."""
        if self._max_concurrency is not None and self._num_admitted >= self._max_concurrency:
            return Refusal("concurrency", None)
        if self._requests is not None and (wait_s := self._requests.wait_s(now_s, 1)):
            return Refusal("requests", wait_s if self._says_retry_after else None)
        if self._tokens is not None and (wait_s := self._tokens.wait_s(now_s, tokens)):
            return Refusal("tokens", wait_s if self._says_retry_after else None)
        self._num_admitted += 1
        if self._requests is not None:
            self._requests.take(now_s, 1)
        if self._tokens is not None:
            self._tokens.take(now_s, tokens)
        return None

    def leave(self, now_s: float, tokens_unused: int) -> None:
        self._num_admitted -= 1
        if self._tokens is not None and tokens_unused:
            self._tokens.take(now_s, -tokens_unused)

    def headers(self, now_s: float) -> dict[str, str]:
        """Returns the `x-ratelimit-*` headers that a provider sends with every response."""
        if not self._says_limits:
            return {}
        headers: dict[str, str] = {}
        for name, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                level = bucket.level(now_s)
                headers[f"x-ratelimit-limit-{name}"] = f"{bucket.per_s * 60:.0f}"
                headers[f"x-ratelimit-remaining-{name}"] = str(max(0, math.floor(level)))
                headers[f"x-ratelimit-reset-{name}"] = f"{(bucket.capacity - level) / bucket.per_s:.3f}s"
        return headers


def _bucket(limit: float | None, period_s: float, burst_s: float) -> Bucket | None:
    return None if limit is None else Bucket(limit, period_s=period_s, burst_s=burst_s)
