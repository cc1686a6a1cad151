"""Measures how a device spends its time.

Always true: every second since the start has exactly one label: the work of the device, or the cause of its idleness;
the labels' seconds add up to the time that passed. Time that the device waits for verdicts is exposed reward time; all
other time with outstanding verdicts of finished rollouts is hidden reward time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Work = Literal["generate", "log_probs", "validate", "update", "publish"]
Cause = Literal["reward", "generation", "validation", "checkpoint", "other"]

LEAST_IDLE_S = 0.001  # shorter pauses, which lie between any two pieces of work, count in totals but are not reported


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageTotals:
    """Seconds by label up to one moment, and the response tokens generated in them."""

    busy_s: Mapping[str, float]
    idle_s: Mapping[str, float]
    hidden_s: float
    generated_tokens: int = 0

    @property
    def wall_s(self) -> float:
        return self.total_busy_s + sum(self.idle_s.values())

    @property
    def total_busy_s(self) -> float:
        return sum(self.busy_s.values())

    @property
    def exposed_s(self) -> float:
        return self.idle_s.get("reward", 0.0)

    def since(self, earlier: UsageTotals) -> UsageTotals:
        return UsageTotals(
            busy_s=_difference(self.busy_s, earlier.busy_s),
            idle_s=_difference(self.idle_s, earlier.idle_s),
            hidden_s=self.hidden_s - earlier.hidden_s,
            generated_tokens=self.generated_tokens - earlier.generated_tokens,
        )

    def tokens_per_s(self, num_tokens: int, work: Work) -> float | None:
        """Divides the tokens by the time of this work; returns None if the work took no time."""
        spent_s = self.busy_s.get(work, 0.0)
        return num_tokens / spent_s if spent_s > 0 else None


class DeviceUsage:
    """Adds up a device's time from calls that say what it works on, what it waits for, and how many verdicts are out.

    Calls `on_idle(cause, started_s, ended_s)` at the end of each idle period of at least a millisecond with one cause.
    `now` is the clock, in seconds; by default the running loop's.
    """

    def __init__(
        self,
        on_idle: Callable[[Cause, float, float], None] | None = None,
        *,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._on_idle = on_idle
        self._now = now or asyncio.get_running_loop().time
        self._idling: tuple[Cause, float] | None = None  # the cause of the idle period, and its start
        self._busy: defaultdict[str, float] = defaultdict(float)
        self._idle: defaultdict[str, float] = defaultdict(float)
        self._hidden_s = 0.0
        self._generated_tokens = 0
        self._work: Work | None = None
        self._causes: list[Cause] = []
        self._verdicts_out = 0
        self._since_s = self._now()

    @property
    def work(self) -> Work | None:
        return self._work

    @property
    def cause(self) -> Cause:
        """Why the device is idle, while it is."""
        return self._causes[-1] if self._causes else "other"

    @property
    def verdicts_out(self) -> int:
        return self._verdicts_out

    @contextlib.contextmanager
    def working(self, work: Work) -> Iterator[None]:
        self._settle()
        self._work = work
        try:
            yield
        finally:
            self._settle()
            self._work = None

    @contextlib.contextmanager
    def waiting_for(self, cause: Cause) -> Iterator[None]:
        self._settle()
        self._causes.append(cause)
        try:
            yield
        finally:
            self._settle()
            self._causes.remove(cause)

    def add_verdicts_out(self, count: int) -> None:
        self._settle()
        self._verdicts_out += count

    def add_generated(self, num_tokens: int) -> None:
        self._generated_tokens += num_tokens

    def totals(self) -> UsageTotals:
        self._settle()
        return UsageTotals(
            busy_s=dict(self._busy),
            idle_s=dict(self._idle),
            hidden_s=self._hidden_s,
            generated_tokens=self._generated_tokens,
        )

    def _settle(self) -> None:
        """Adds the time since the last change to the label that was valid."""
        now = self._now()
        passed_s = now - self._since_s
        self._report_idle(passed_s)
        self._since_s = now
        if self._work is not None:
            self._busy[self._work] += passed_s
        else:
            self._idle[self.cause] += passed_s
        is_exposed = self._work is None and self.cause == "reward"
        if self._verdicts_out and not is_exposed:
            self._hidden_s += passed_s

    def _report_idle(self, passed_s: float) -> None:
        """Reports the previous idle period if the time that just passed has another label."""
        cause = self.cause if self._work is None else None
        # Code that waits several times in a row drops its cause for a moment in between; that is not another cause.
        is_pause = cause is not None and passed_s < LEAST_IDLE_S
        if self._idling is not None and self._idling[0] != cause and not is_pause:
            since_s = self._idling[1]
            if self._on_idle is not None and self._since_s - since_s >= LEAST_IDLE_S:
                self._on_idle(self._idling[0], since_s, self._since_s)
            self._idling = None
        if self._idling is None and cause is not None:
            self._idling = (cause, self._since_s)


def _difference(later: Mapping[str, float], earlier: Mapping[str, float]) -> dict[str, float]:
    return {name: seconds - earlier.get(name, 0.0) for name, seconds in later.items()}
