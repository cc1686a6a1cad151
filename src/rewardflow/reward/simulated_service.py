"""Simulates a rate-limited reward service, for tests, benchmarks and trying settings out.

Always true: every call is answered once, accepted or refused, on the running loop's clock. The service is a token
bucket (`rpm`, `burst`) in front of `capacity` servers with a queue; `arrivals` holds each decision with its time.

    service = SimulatedService(rpm=600, burst=60, latency_s=20.0)
    await service.call()                      # returns, or raises RateLimited
    service.accepted_share(since_s=60.0)      # of what the limit allowed
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable

from rewardflow.errors import InvalidInput, RateLimited, ServiceError

# Wake-ups on a float clock may come a nanosecond early; a real service would not reject such a call either.
_ROUNDING = 1e-6


class SimulatedService:
    """A simulated service. `rpm` and `is_down` may change while it runs; `latency_s` may be a function."""

    def __init__(
        self,
        *,
        rpm: float | None = None,
        burst: int = 1,
        latency_s: float | Callable[[], float] = 0.3,
        rejection_latency_s: float = 0.05,
        retry_after_s: float | None = None,
        capacity: int | None = None,
    ) -> None:
        if burst < 1 or (rpm is not None and rpm <= 0) or (capacity is not None and capacity < 1):
            raise InvalidInput(f"limits must be positive, got rpm={rpm}, burst={burst}, capacity={capacity}")
        self.is_down = False
        self.retry_after_s = retry_after_s
        self.num_accepted = 0
        self.num_rejected = 0
        self.arrivals: list[tuple[float, bool]] = []
        self._rpm = rpm
        self._burst = burst
        self._latency_s = latency_s
        self._rejection_latency_s = rejection_latency_s
        self._servers = asyncio.Semaphore(capacity) if capacity is not None else contextlib.nullcontext()
        self._level = float(burst)
        self._level_at = -math.inf

    @property
    def rpm(self) -> float | None:
        return self._rpm

    @rpm.setter
    def rpm(self, rpm: float | None) -> None:
        self._refill(asyncio.get_running_loop().time())
        self._rpm = rpm

    async def call(self, latency_s: float | None = None) -> None:
        """Calls the service once. Raises `RateLimited` or, while it is down, `ServiceError`.

        `latency_s` overrides the service's own latency for this call.
        """
        now = asyncio.get_running_loop().time()
        if self.is_down:
            await asyncio.sleep(self._rejection_latency_s)
            raise ServiceError("the simulated service is down", status=503)
        accepted = self._admit(now)
        self.arrivals.append((now, accepted))
        if not accepted:
            self.num_rejected += 1
            await asyncio.sleep(self._rejection_latency_s)
            raise RateLimited(retry_after_s=self.retry_after_s)
        self.num_accepted += 1
        async with self._servers:
            await asyncio.sleep(self._draw_s() if latency_s is None else latency_s)

    def accepted_share(self, since_s: float, until_s: float) -> float:
        """Returns accepted calls divided by what the current rpm allows in that time; above 1 if burst was used."""
        if self._rpm is None:
            raise InvalidInput("accepted_share needs a limit, got rpm=None")
        accepted = sum(1 for at, accepted in self.arrivals if accepted and since_s <= at < until_s)
        return accepted / ((until_s - since_s) * self._rpm / 60.0)

    def rejected_share(self, since_s: float, until_s: float) -> float:
        """Returns refused calls divided by all calls of that time."""
        decisions = [accepted for at, accepted in self.arrivals if since_s <= at < until_s]
        return decisions.count(False) / len(decisions) if decisions else 0.0

    def _draw_s(self) -> float:
        return self._latency_s() if callable(self._latency_s) else self._latency_s

    def _admit(self, now: float) -> bool:
        if self._rpm is None:
            return True
        self._refill(now)
        if self._level < 1.0 - _ROUNDING:
            return False
        self._level -= 1.0
        return True

    def _refill(self, now: float) -> None:
        if self._rpm is not None:
            self._level = min(float(self._burst), self._level + (now - self._level_at) * self._rpm / 60.0)
        self._level_at = now
