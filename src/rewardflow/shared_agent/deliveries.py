"""What is delivered to clients: the outbox of each at the host, the sinks that fill it, and the inbox at the client.

Always true: a delivery that was not confirmed is sent again, in the same order; a confirmed one never is. Verdicts have
serial numbers and events are counted, so a client recognises what it has received before. An outbox keeps every
verdict, but at most `max_events` events, and counts those it dropped. Every client that records its run gets each call
for the run, and the events that concern all runs; where no client records, no sink exists and nothing is packed. An
inbox passes each event on once, with a time of its own process's clock; it lacks calls that a host had not reported
when it died.
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rewardflow.observe.events import Event, EventSink
from rewardflow.shared_agent.messages import Delivery, Halt, Packed, PackedVerdict, pack_event, unpack_event

logger = logging.getLogger(__name__)

MAX_EVENTS = 100_000  # a few seconds' worth with the fastest judge; clients poll at least that often


@dataclass(slots=True)
class _Batch:
    verdicts: list[PackedVerdict] = field(default_factory=list)
    events: list[Packed] = field(default_factory=list)
    num_lost: int = 0


class Outbox:
    """The verdicts and events for one client; `hand_over` makes a delivery of all that waits."""

    def __init__(self, *, max_events: int = MAX_EVENTS) -> None:
        self._max_events = max_events
        self._name = uuid.uuid4().hex
        self._number = 0
        self._num_events = 0
        self._waiting = _Batch()
        self._handed_out = _Batch()

    @property
    def has_verdicts(self) -> bool:
        return bool(self._waiting.verdicts)

    @property
    def num_verdicts(self) -> int:
        """Verdicts that the client has not confirmed."""
        return len(self._waiting.verdicts) + len(self._handed_out.verdicts)

    def put(self, verdict: PackedVerdict) -> None:
        self._waiting.verdicts.append(verdict)

    def put_event(self, event: Packed) -> None:
        """Adds an event without waking the client's poll: it is sent with the next verdicts."""
        if len(self._waiting.events) < self._max_events:
            self._waiting.events.append(event)
            self._num_events += 1
        else:
            self._waiting.num_lost += 1

    def confirm(self, number: int) -> list[int]:
        """Notes that the client has every delivery up to this one; returns the serial numbers that this confirms."""
        if number != self._number:
            self.take_back()
            return []
        confirmed, self._handed_out = self._handed_out, _Batch()
        return [serial for serial, _, _ in confirmed.verdicts]

    def hand_over(self, *, halt: Halt | None, sent_s: float) -> Delivery:
        self._number += 1
        batch = self._handed_out = self._waiting
        self._waiting = _Batch()
        return Delivery(
            self._number,
            batch.verdicts,
            halt,
            events=batch.events,
            num_events_lost=batch.num_lost,
            sent_s=sent_s,
            outbox_id=self._name,
            first_event=self._num_events - len(batch.events),
        )

    def take_back(self) -> None:
        """Queues the last delivery again, in front of the rest, because it may not have arrived."""
        again, later = self._handed_out, self._waiting
        self._handed_out = _Batch()
        self._waiting = _Batch(
            again.verdicts + later.verdicts, again.events + later.events, again.num_lost + later.num_lost
        )


@dataclass(frozen=True, slots=True)
class _RunSink:
    """The event sink of one run: passes events to each client that records the run."""

    outboxes: Sequence[Outbox]

    def emit(self, event: Event) -> None:
        packed = pack_event(event)
        for outbox in self.outboxes:
            outbox.put_event(packed)


class Listeners:
    """The event sinks of all runs that a client records; itself a sink for events that concern all runs."""

    def __init__(self) -> None:
        self._sinks: dict[str, _RunSink] = {}  # by run

    def set_outboxes(self, run: str, outboxes: Iterable[Outbox]) -> None:
        """Replaces the outboxes that get the run's events."""
        self._sinks.pop(run, None)
        if listening := tuple(outboxes):
            self._sinks[run] = _RunSink(listening)

    def of(self, run: str) -> EventSink | None:
        return self._sinks.get(run)

    def emit(self, event: Event) -> None:
        for sink in self._sinks.values():
            sink.emit(event)

    def clear(self) -> None:
        self._sinks.clear()


class Inbox:
    """The events of a client's run, from the calls that the host makes for it."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._clock_offset_s = math.inf
        self._outbox_id = ""
        self._num_received = 0

    def reconnected(self) -> None:
        """Forgets the clock offset: another host may be on another machine, with another clock."""
        self._clock_offset_s = math.inf

    def received(self, delivery: Delivery) -> None:
        """Passes a delivery's events on, each once.

        The clock offset is that of the fastest message so far: it is too large only by that message's travel time.
        """
        self._clock_offset_s = min(self._clock_offset_s, self._loop.time() - delivery.sent_s)
        if delivery.outbox_id != self._outbox_id:
            self._outbox_id, self._num_received = delivery.outbox_id, 0
        for packed in delivery.events[max(0, self._num_received - delivery.first_event) :]:
            self._sink.emit(unpack_event(packed, clock_offset_s=self._clock_offset_s))
        self._num_received = max(self._num_received, delivery.first_event + len(delivery.events))
        if delivery.num_events_lost:
            logger.warning("%d calls are not in the record: too many came at a time", delivery.num_events_lost)
