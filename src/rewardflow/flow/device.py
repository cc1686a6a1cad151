"""Leases a device to one piece of work at a time, in order of priority.

Always true: a device has at most one holder; among waiting work, generation goes first, then log-probs, then
validation, then updates; announced work goes before work of lower priority, even before it requests the lease; between
a step's first update and its publishing nothing is generated, for training or validation, because the weights belong
to no version then.

Generation and training use one `Device` together if they share the hardware, and one each if they do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import Counter
from collections.abc import AsyncIterator, Iterator

from rewardflow.flow.device_usage import Cause, DeviceUsage, Work
from rewardflow.observe.events import DeviceIdled, DeviceWorked, EventSink

_PRIORITY: dict[Work, int] = {"generate": 0, "log_probs": 1, "validate": 2, "update": 3, "publish": 3}


class Device:
    """A lock with priorities that records what the device did and why it was idle."""

    def __init__(self, name: str, *, sink: EventSink | None = None) -> None:
        self.name = name
        self._sink = sink
        self.usage = DeviceUsage(on_idle=self._idled)
        self._loop = asyncio.get_running_loop()
        self._is_held = False
        self._num_updating = 0
        self._announced: Counter[Work] = Counter()
        self._waiting: list[tuple[int, int, Work, asyncio.Future[None]]] = []
        self._num_asked = 0

    @contextlib.asynccontextmanager
    async def lease(self, work: Work, step: int) -> AsyncIterator[None]:
        """Waits for the device and holds it for one piece of work."""
        await self._acquire(work)
        started_s = self._loop.time()
        try:
            with self.usage.working(work):
                yield
        finally:
            self._is_held = False
            if self._sink is not None:
                now = self._loop.time()
                self._sink.emit(DeviceWorked(at_s=now, device=self.name, work=work, step=step, started_s=started_s))
            self._grant()

    def announce(self, work: Work, count: int = 1) -> None:
        """Reserves the next turn for this work: work of lower priority waits until `retract` is called."""
        self._announced[work] += count

    def retract(self, work: Work) -> None:
        """Ends an announcement, because the work holds the device now or will never come."""
        self._announced[work] -= 1
        self._grant()

    @contextlib.contextmanager
    def updating(self) -> Iterator[None]:
        """Spans the time from a step's first update to its publishing."""
        self._num_updating += 1
        try:
            yield
        finally:
            self._num_updating -= 1
            self._grant()

    def _idled(self, cause: Cause, started_s: float, ended_s: float) -> None:
        if self._sink is not None:
            self._sink.emit(DeviceIdled(at_s=ended_s, device=self.name, cause=cause, started_s=started_s))

    async def _acquire(self, work: Work) -> None:
        ticket: asyncio.Future[None] = self._loop.create_future()
        self._num_asked += 1
        heapq.heappush(self._waiting, (_PRIORITY[work], self._num_asked, work, ticket))
        self._grant()
        try:
            await ticket
        except asyncio.CancelledError:
            if ticket.done() and not ticket.cancelled():  # granted and cancelled in the same turn
                self._is_held = False
            ticket.cancel()
            self._grant()
            raise

    def _grant(self) -> None:
        if self._is_held:
            return
        put_off = []
        while self._waiting:
            entry = heapq.heappop(self._waiting)
            if entry[3].done():  # its owner was cancelled
                continue
            if self._may_start(entry[2]):
                self._is_held = True
                entry[3].set_result(None)
                break
            put_off.append(entry)
        for entry in put_off:
            heapq.heappush(self._waiting, entry)

    def _may_start(self, work: Work) -> bool:
        if work in ("generate", "validate") and self._num_updating:
            return False
        return not any(count > 0 and _PRIORITY[due] < _PRIORITY[work] for due, count in self._announced.items())
