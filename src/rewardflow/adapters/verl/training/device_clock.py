"""Where the time of a step went, for a trainer that waits in one thread.

Always true: every second between two reports has exactly one label: the work that was done, or the cause of doing
none; the labels' seconds add up to the time that passed. Waiting inside work, as verl's trainer never does, is an
error.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rewardflow.errors import FlowError
from rewardflow.flow.device_usage import LEAST_IDLE_S, Cause, UsageTotals, Work
from rewardflow.observe.events import DeviceIdled, DeviceWorked, EventSink

DEVICE = "verl"


class DeviceClock:
    """Told what the device does; `take` gives the totals since the last time."""

    def __init__(self, sink: EventSink | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._sink = sink
        self._busy: defaultdict[str, float] = defaultdict(float)
        self._idle: defaultdict[str, float] = defaultdict(float)
        self._label: str | None = None
        self._since_s = now()

    @property
    def is_working(self) -> bool:
        return self._label is not None

    @contextmanager
    def working(self, work: Work, *, step: int) -> Iterator[None]:
        started_s = self._enter(work)
        try:
            yield
        finally:
            ended_s = self._leave(self._busy)
            if self._sink is not None:
                self._sink.emit(DeviceWorked(at_s=ended_s, device=DEVICE, work=work, step=step, started_s=started_s))

    @contextmanager
    def waiting_for(self, cause: Cause) -> Iterator[None]:
        started_s = self._enter(cause)
        try:
            yield
        finally:
            ended_s = self._leave(self._idle)
            if self._sink is not None and ended_s - started_s >= LEAST_IDLE_S:
                self._sink.emit(DeviceIdled(at_s=ended_s, device=DEVICE, cause=cause, started_s=started_s))

    def take(self, *, verdicts_out_s: float) -> UsageTotals:
        """Of the time since the last taking, in which some verdict was out for `verdicts_out_s`."""
        self._book(self._idle, "other")
        exposed_s = self._idle.get("reward", 0.0)
        totals = UsageTotals(
            busy_s=dict(self._busy), idle_s=dict(self._idle), hidden_s=max(0.0, verdicts_out_s - exposed_s)
        )
        self._busy.clear()
        self._idle.clear()
        return totals

    def _enter(self, label: str) -> float:
        if self._label is not None:
            raise FlowError(f"a device does one thing at a time, got {label} inside {self._label}")
        self._book(self._idle, "other")
        self._label = label
        return self._since_s

    def _leave(self, totals: defaultdict[str, float]) -> float:
        label, self._label = self._label, None
        self._book(totals, label or "other")
        return self._since_s

    def _book(self, totals: defaultdict[str, float], label: str) -> None:
        now = self._now()
        totals[label] += now - self._since_s
        self._since_s = now
