"""The record that a client keeps of its run: the events that a run directory is made from.

Always true: every event is on this process's clock; the calls are those of the whole run, whoever asked for them, and
each is told once; the verdicts are those that this client has asked for. Calls that a host had not told of when it died
are not in it; the verdicts on them are.
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
    """`step_idle` is called whenever nothing more is out of a step, with its source."""

    def __init__(self, sink: EventSink, step_idle: Callable[[int, str], None] = lambda step, source: None) -> None:
        self._sink = sink
        self._step_idle = step_idle
        self._loop = asyncio.get_running_loop()
        self._num_out: Counter[tuple[int, str]] = Counter()
        self._later_s = math.inf
        self._box = ""
        self._num_heard = 0

    def opened(self, welcome: Welcome) -> None:
        now_s, unix_s = self._loop.time(), time.time()
        self._sink.emit(AgentOpened(at_s=now_s, unix_s=unix_s, rewards=[welcome.name], settings=welcome.settings))

    def closed(self, statistics: ClientStatistics) -> None:
        self._sink.emit(AgentEnded(at_s=self._loop.time(), statistics=dataclasses.asdict(statistics)))

    def reconnected(self) -> None:
        """Another host may be on another machine, with another clock."""
        self._later_s = math.inf

    def sent(self, rollout: Rollout, source: str) -> None:
        self._num_out[rollout.step, source] += 1

    def ended(self, rollout: Rollout, source: str) -> None:
        whose = rollout.step, source
        self._num_out[whose] -= 1
        if not self._num_out[whose]:
            del self._num_out[whose]
            self._step_idle(*whose)

    def heard(self, delivery: Delivery) -> None:
        """How far apart the clocks are is what the fastest message so far has shown: too much by its way alone."""
        self._later_s = min(self._later_s, self._loop.time() - delivery.sent_s)
        if delivery.box != self._box:
            self._box, self._num_heard = delivery.box, 0
        for packed in delivery.news[max(0, self._num_heard - delivery.first_news) :]:
            self._sink.emit(unpack_event(packed, later_s=self._later_s))
        self._num_heard = max(self._num_heard, delivery.first_news + len(delivery.news))
        if delivery.num_news_lost:
            logger.warning("%d calls are not in the record: there were too many at a time", delivery.num_news_lost)

    def judged(self, rollout: Rollout, reward: Reward, *, waited_s: float, source: str) -> None:
        """A sample that was asked about alone."""
        at_s = self._loop.time()
        self._sink.emit(verdict_event(rollout, reward, at_s=at_s, waited_s=waited_s, source=source))

    def delivered(self, pending: PendingGroup, group: ScoredGroup) -> None:
        record_group(self._sink, pending, group, at_s=self._loop.time())
