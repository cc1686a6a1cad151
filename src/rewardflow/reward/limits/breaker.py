"""Stops sending to an endpoint that fails, and finds out when it works again.

Always true: while the breaker is open, only single calls (probes) start, one after another failed, and the time between
them grows. One success closes the breaker, unless its call started before the breaker opened. A probe that hangs does
not delay the next one for long, because the request may be at fault and not the endpoint. "Too many requests" means
that the service is alive, so it opens the breaker only after a long time without success.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

State = Literal["closed", "open", "probing"]

_FIRST_PROBE_S = 1.0
_LONGEST_PROBE_S = 30.0
_SILENT_PROBE_S = 10.0  # a probe that is not answered for this long says nothing about the endpoint
_REJECTED_SILENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class BreakerStatistics:
    state: State
    times_opened: int
    open_since_s: float | None
    last_failure: str | None


class Breaker:
    """Opens when at least `share` of the last `window` outcomes failed. `share=None` never opens."""

    def __init__(self, *, window: int, share: float | None) -> None:
        self._share = share
        self._outcomes: deque[bool] = deque(maxlen=window)
        self._num_failed = 0
        self._state: State = "closed"
        self._probe_at_s = 0.0
        self._probe_wait_s = _FIRST_PROBE_S
        self._open_since_s: float | None = None
        self._last_success_s: float | None = None
        self._num_rejected = 0
        self._times_opened = 0
        self._last_failure: str | None = None

    @property
    def is_open(self) -> bool:
        return self._state != "closed"

    @property
    def open_since_s(self) -> float | None:
        return self._open_since_s

    def ready_at(self, now: float) -> float:
        """Returns when the next call may start."""
        return now if self._state == "closed" else max(now, self._probe_at_s)

    def start(self, now: float) -> None:
        if self._last_success_s is None:
            self._last_success_s = now
        if self._state != "closed":
            self._state = "probing"
            self._probe_at_s = now + _SILENT_PROBE_S

    def succeeded(self, now: float, started_s: float | None = None) -> None:
        """Records a success of a call that started at `started_s`."""
        if self._open_since_s is not None and started_s is not None and started_s < self._open_since_s:
            return  # an answer from before the outage: the service may finish old calls and refuse every new one
        self._last_success_s = now
        self._num_rejected = 0
        if self._num_failed:
            self._remember(True)
        else:
            self._outcomes.append(True)
        if self._state != "closed":
            self._state = "closed"
            self._open_since_s = None
            self._probe_wait_s = _FIRST_PROBE_S
            self._outcomes.clear()
            self._num_failed = 0

    def failed(self, now: float, reason: str, *, is_silence: bool = False) -> None:
        """Records a failure; `is_silence` if no answer came in time."""
        self._last_failure = reason
        self._remember(False)
        if self._state == "closed":
            full = len(self._outcomes) == self._outcomes.maxlen
            if self._share is not None and full and self._num_failed >= self._share * len(self._outcomes):
                self._open(now)
        else:
            self._postpone(now, is_silence=is_silence)

    def open_early(self, now: float) -> bool:
        """Opens before the window is full, if it may open at all; returns whether it did."""
        if self._share is None or self._state != "closed":
            return False
        self._open(now)
        return True

    def rejected(self, now: float, reason: str) -> None:
        """Records a 429: the service is alive, unless only 429s came for long (as when the quota is spent)."""
        self._num_rejected += 1
        self._last_failure = reason
        since = now if self._last_success_s is None else self._last_success_s
        if self._state == "probing":
            self._postpone(now)
            return
        is_silent = now - since >= _REJECTED_SILENCE_S and self._num_rejected >= (self._outcomes.maxlen or 1)
        if is_silent and self._state == "closed" and self._share is not None:
            self._open(now)

    def abandoned(self, now: float) -> None:
        """Records an attempt that says nothing about the service (we cancelled it, or reward code has a bug)."""
        if self._state == "probing":
            self._state = "open"
            self._probe_at_s = now

    def statistics(self) -> BreakerStatistics:
        return BreakerStatistics(self._state, self._times_opened, self._open_since_s, self._last_failure)

    def _remember(self, ok: bool) -> None:
        outcomes = self._outcomes
        if len(outcomes) == outcomes.maxlen and not outcomes[0]:
            self._num_failed -= 1
        outcomes.append(ok)
        if not ok:
            self._num_failed += 1

    def _open(self, now: float) -> None:
        self._state = "open"
        self._open_since_s = now
        self._times_opened += 1
        self._probe_at_s = now + self._probe_wait_s

    def _postpone(self, now: float, *, is_silence: bool = False) -> None:
        """Sets the time of the next probe after a probe has failed."""
        if self._state == "probing":
            self._state = "open"
            self._probe_wait_s = min(self._probe_wait_s * 2, _LONGEST_PROBE_S)
            next_at_s = now + self._probe_wait_s
            self._probe_at_s = min(self._probe_at_s, next_at_s) if is_silence else next_at_s
