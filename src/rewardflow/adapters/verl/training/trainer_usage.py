"""Books where a step's time went, for a trainer that waits in one thread, and writes the device's events.

Always true: the device does one thing at a time; work inside other work or inside a wait, which verl's trainer never
does, is an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rewardflow.errors import FlowError
from rewardflow.flow.device_usage import LEAST_IDLE_S, Cause, DeviceUsage, UsageTotals, Work
from rewardflow.observe.events import DeviceIdled, DeviceWorked, EventSink

DEVICE = "verl"


class TrainerUsage:
    """The trainer says what the device does; `take` returns the totals since the last call."""

    def __init__(self, sink: EventSink | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._sink = sink
        self._usage = DeviceUsage(now=now)
        self._taken = self._usage.totals()

    @property
    def is_working(self) -> bool:
        return self._usage.work is not None

    @contextmanager
    def working(self, work: Work, *, step: int) -> Iterator[None]:
        self._check_free(work)
        started_s = self._now()
        try:
            with self._usage.working(work):
                yield
        finally:
            if self._sink is not None:
                now = self._now()
                self._sink.emit(DeviceWorked(at_s=now, device=DEVICE, work=work, step=step, started_s=started_s))

    @contextmanager
    def waiting_for(self, cause: Cause) -> Iterator[None]:
        self._check_free(cause)
        started_s = self._now()
        try:
            with self._usage.waiting_for(cause):
                yield
        finally:
            now = self._now()
            if self._sink is not None and now - started_s >= LEAST_IDLE_S:
                self._sink.emit(DeviceIdled(at_s=now, device=DEVICE, cause=cause, started_s=started_s))

    def take(self, *, outstanding_s: float) -> UsageTotals:
        """Returns the totals since the last call; verdicts were outstanding for `outstanding_s` of that time."""
        totals = self._usage.totals()
        since, self._taken = totals.since(self._taken), totals
        return UsageTotals(
            busy_s=_used(since.busy_s), idle_s=_used(since.idle_s), hidden_s=max(0.0, outstanding_s - since.exposed_s)
        )

    def _check_free(self, label: Work | Cause) -> None:
        held = self._usage.work or self._usage.cause
        if held != "other":
            raise FlowError(f"a device does one thing at a time, got {label} inside {held}")


def _used(seconds: Mapping[str, float]) -> dict[str, float]:
    """Drops labels without any time, so that a step has no metrics of other steps' work."""
    return {label: value for label, value in seconds.items() if value > 0}
