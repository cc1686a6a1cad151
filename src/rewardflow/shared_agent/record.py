"""The events that a client records of its run, for a run directory or a sink.

Always true: every event has a time of this process's clock. The record holds each call of the whole run once, whichever
client asked for it, and the verdicts that this client asked for. It lacks calls that a host had not reported when it
died; their verdicts are in it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
import time
from collections import Counter
from collections.abc import Callable

from rewardflow.observe.events import AgentEnded, AgentOpened, EventSink
from rewardflow.reward.groups.pending_group import PendingGroup
from rewardflow.reward.recorder import record_group, verdict_event
from rewardflow.shared_agent.client_counts import ClientStatistics
from rewardflow.shared_agent.messages import Delivery, Welcome, unpack_event
from rewardflow.types import Reward, Rollout, ScoredGroup

logger = logging.getLogger(__name__)


class RunRecord:
    """Writes events to a sink. Calls `step_idle` with a step and its source whenever no rollout of them is waiting."""

    def __init__(self, sink: EventSink, step_idle: Callable[[int, str], None] = lambda step, source: None) -> None:
        self._sink = sink
        self._step_idle = step_idle
        self._loop = asyncio.get_running_loop()
        self._num_out: Counter[tuple[int, str]] = Counter()
        self._clock_offset_s = math.inf
        self._outbox_id = ""
        self._num_received = 0

    def opened(self, welcome: Welcome) -> None:
        now_s, unix_s = self._loop.time(), time.time()
        self._sink.emit(AgentOpened(at_s=now_s, unix_s=unix_s, rewards=[welcome.name], settings=welcome.settings))

    def closed(self, statistics: ClientStatistics) -> None:
        self._sink.emit(AgentEnded(at_s=self._loop.time(), statistics=dataclasses.asdict(statistics)))

    def reconnected(self) -> None:
        """Forgets the clock offset: another host may be on another machine, with another clock."""
        self._clock_offset_s = math.inf

    def sent(self, rollout: Rollout, source: str) -> None:
        self._num_out[rollout.step, source] += 1

    def ended(self, rollout: Rollout, source: str) -> None:
        whose = rollout.step, source
        self._num_out[whose] -= 1
        if not self._num_out[whose]:
            del self._num_out[whose]
            self._step_idle(*whose)

    def received(self, delivery: Delivery) -> None:
        """Records a delivery's events, each once.

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

    def judged(self, rollout: Rollout, reward: Reward, *, waited_s: float, source: str) -> None:
        """Records the verdict on a rollout that `score` submitted."""
        at_s = self._loop.time()
        self._sink.emit(verdict_event(rollout, reward, at_s=at_s, waited_s=waited_s, source=source))

    def delivered(self, pending: PendingGroup, group: ScoredGroup) -> None:
        record_group(self._sink, pending, group, at_s=self._loop.time())
