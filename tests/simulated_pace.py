"""Runs a `Pace` against a simulated service, one event after another and without an event loop.

Always true: at most `slots` calls are out, and a free slot starts the next call as soon as the pace allows. Twenty
minutes at 600 calls a minute take a fraction of a second, so that tables of settings can be made
(`pace_table.py`) and tests stay fast.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rewardflow.reward.limits.pace import Pace, Start

_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service that admits calls by a token bucket, or counts them in windows."""

    rpm: float | None = 600.0
    window_s: float = 0.0  # so many seconds' worth of calls are admitted in each window, as soon as they come
    slides: bool = False  # whether every stretch of that length is a window
    burst: float = 1.0
    changes: tuple[tuple[float, float], ...] = ()  # times, and the rpm from then on
    replies_s: tuple[float, float] = (0.2, 0.2)  # evenly between
    refusals_s: tuple[float, float] = (0.05, 0.05)
    jitter_s: float = 0.0  # a call reaches the service up to this much later
    retry_after: Callable[[float], float] | None = None  # of the time until the next call is admitted
    announces: bool = False
    noise: float = 0.0  # the share that is refused by chance


@dataclass(slots=True)
class Log:
    """The decisions of the service: time and whether the call was accepted."""

    decisions: list[tuple[float, bool]] = field(default_factory=list)

    def accepted_share(self, rpm: float, since_s: float, until_s: float) -> float:
        accepted = sum(1 for at, ok in self.decisions if ok and since_s <= at < until_s)
        return accepted / ((until_s - since_s) * rpm / 60.0)

    def refused_share(self, since_s: float, until_s: float) -> float:
        decisions = [ok for at, ok in self.decisions if since_s <= at < until_s]
        return decisions.count(False) / len(decisions) if decisions else 0.0


class _Windows:
    """Counts calls in windows of one length: one after the other, or every stretch of that length."""

    def __init__(self, service: Service, begins_s: float) -> None:
        assert service.rpm is not None
        self._window_s = service.window_s
        self._most = round(service.rpm / 60.0 * service.window_s)
        self._slides = service.slides
        self._begins_s = begins_s
        self._admitted: deque[float] = deque()

    def wait_s(self, now: float) -> float:
        """Takes one call out and returns 0, or returns how long until that is possible."""
        while self._admitted and self._ends_s(self._admitted[0]) <= now:
            self._admitted.popleft()
        if len(self._admitted) >= self._most:
            return self._ends_s(self._admitted[0]) - now
        self._admitted.append(now)
        return 0.0

    def _ends_s(self, admitted_s: float) -> float:
        """Returns when the window of a call that was admitted then is over."""
        if self._slides:
            return admitted_s + self._window_s
        num = math.floor((admitted_s - self._begins_s) / self._window_s) + 1
        return self._begins_s + num * self._window_s


class _Bucket:
    def __init__(self, service: Service) -> None:
        self._changes = list(service.changes)
        self._rpm = service.rpm
        self._burst = service.burst
        self._level = service.burst
        self._at = -math.inf

    def wait_s(self, now: float) -> float:
        """Takes one call out and returns 0, or returns how long until that is possible."""
        while self._changes and self._changes[0][0] <= now:
            at, rpm = self._changes.pop(0)
            self._refill(at)
            self._rpm = rpm
        self._refill(now)
        if self._rpm is None:
            return 0.0
        if self._level >= 1.0 - _ROUNDING:
            self._level -= 1.0
            return 0.0
        return (1.0 - self._level) * 60.0 / self._rpm

    def _refill(self, now: float) -> None:
        if self._rpm is not None and now > self._at:
            self._level = min(self._burst, self._level + (now - self._at) * self._rpm / 60.0)
        self._at = max(self._at, now)


def run(
    pace: Pace,
    service: Service,
    *,
    slots: int,
    until_s: float,
    seed: int = 0,
    is_busy: Callable[[float], float] = lambda now: now,
) -> Log:
    """Runs calls until then. `is_busy` returns the next time at which there is work, `now` if there is some."""
    return _Run(pace, service, slots, seed).go(until_s, is_busy)


class _Run:
    def __init__(self, pace: Pace, service: Service, slots: int, seed: int) -> None:
        self._pace = pace
        self._service = service
        self._free = slots
        self._rng = random.Random(seed)
        self._limit = (
            _Windows(service, self._rng.uniform(-service.window_s, 0.0)) if service.window_s else _Bucket(service)
        )
        self._log = Log()
        # time, tie-breaker, what: "arrives" or "ends", the start, the Retry-After or None if accepted
        self._events: list[tuple[float, int, bool, Start, float | None]] = []
        self._num = 0

    def go(self, until_s: float, is_busy: Callable[[float], float]) -> Log:
        now = 0.0
        while now < until_s:
            at = math.inf
            if self._free:
                at = is_busy(now)
                if at <= now:
                    at = self._pace.ready_at(now)
                    if at <= now:
                        self._send(now)
                        continue
            if self._events and self._events[0][0] <= at:
                now = self._events[0][0]
                self._happen(now)
            else:
                now = at
        return self._log

    def _push(self, at: float, is_arrival: bool, start: Start, retry_after_s: float | None) -> None:
        self._num += 1
        heapq.heappush(self._events, (at, self._num, is_arrival, start, retry_after_s))

    def _send(self, now: float) -> None:
        self._free -= 1
        start = self._pace.start(now)
        jitter_s = self._service.jitter_s
        self._push(now + (self._rng.uniform(0.0, jitter_s) if jitter_s else 0.0), True, start, None)

    def _happen(self, now: float) -> None:
        _, _, is_arrival, start, retry_after_s = heapq.heappop(self._events)
        if is_arrival:
            self._arrive(now, start)
            return
        self._free += 1
        if retry_after_s is None:
            self._pace.succeeded(start, now)
        else:
            self._pace.limited(start, now, retry_after_s or None)
        if self._service.announces:
            self._pace.learn_headers({"x-ratelimit-limit-requests": f"{self._service.rpm:g}"}, now)

    def _arrive(self, now: float, start: Start) -> None:
        service = self._service
        wait_s = 0.0
        is_noise = service.noise > 0.0 and self._rng.random() < service.noise
        if not is_noise:
            wait_s = self._limit.wait_s(now)
        is_refused = is_noise or wait_s > 0.0
        self._log.decisions.append((now, not is_refused))
        if is_refused:
            after_s = service.retry_after(wait_s) if service.retry_after else 0.0
            self._push(now + self._rng.uniform(*service.refusals_s), False, start, after_s)
        else:
            self._push(now + self._rng.uniform(*service.replies_s), False, start, None)
