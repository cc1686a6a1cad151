"""Stands in for the reward agent in a simulation where calls can only wait for a slot.

Always true: a simulation with this queue equals the one with the real agent, moment by moment
(`tests/plan/test_slot_queue.py` runs both). It serves plans in which no call is refused, fails or is paced: when a
rollout arrives, its latency and the slots then say when its call starts and ends, so that no call is made and the loop
wakes up once for each group instead of several times for each call. Every other plan is simulated with the agent.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Protocol, Self, TypeVar

from rewardflow.errors import FlowError
from rewardflow.observe.events import REWARD_SOURCE
from rewardflow.plan.settings import PlanSettings
from rewardflow.plan.simulated_parts import CallLog
from rewardflow.reward.groups.pending_group import PendingGroup
from rewardflow.reward.ticket import Ticket
from rewardflow.types import Reward, Rollout, ScoredGroup

T = TypeVar("T")


def needs_only_slots(settings: PlanSettings) -> bool:
    """Whether slots are the only thing that a call of this plan can wait for."""
    service = settings.service
    return service.rpm is None and service.tpm is None and service.failures == 0.0 and not settings.limits


@dataclass(slots=True, eq=False)
class _OpenGroup:
    """A group without all of its verdicts."""

    pending: PendingGroup
    waiting: list[Rollout] = field(default_factory=list)  # their verdicts have not come
    num_unplanned: int = 0  # calls whose times are not known yet
    last_end_s: float = 0.0  # of the calls whose times are known
    wakes_at_s: float | None = None


class _Call(NamedTuple):
    group: _OpenGroup
    started_s: float
    ended_s: float


class Slots(Protocol):
    def add(self, group: _OpenGroup, latency_s: float, now_s: float) -> Iterable[_Call]:
        """Adds a call to the end of the queue; returns the calls whose times are known now."""


class SharedSlots:
    """Gives each call, in the order of the queue, the slot that is free first."""

    def __init__(self, slots: int) -> None:
        self._free_s = [0.0] * slots

    def add(self, group: _OpenGroup, latency_s: float, now_s: float) -> tuple[_Call]:
        started_s = max(now_s, self._free_s[0])
        ended_s = started_s + latency_s
        heapq.heapreplace(self._free_s, ended_s)
        return (_Call(group, started_s, ended_s),)


class OneBatchSlots:
    """Gives slots as the original's thread pool does (`OriginalThreadPool`).

    A batch starts when its last call has arrived and the batch before is over; its calls start in a random order.
    """

    def __init__(self, slots: int, *, calls_per_step: int, seed: int = 0) -> None:
        self._slots = slots
        self._calls_per_step = calls_per_step
        self._rng = random.Random(seed)
        self._arrived: list[tuple[float, float, _OpenGroup]] = []
        self._over_s = 0.0

    def add(self, group: _OpenGroup, latency_s: float, now_s: float) -> list[_Call]:
        self._arrived.append((self._rng.random(), latency_s, group))
        if len(self._arrived) < self._calls_per_step:
            return []
        slots, starts_s = SharedSlots(self._slots), max(now_s, self._over_s)
        in_order = sorted(self._arrived, key=lambda one: one[0])
        calls = [call for _, latency, one in in_order for call in slots.add(one, latency, starts_s)]
        self._arrived, self._over_s = [], max(call.ended_s for call in calls)
        return calls


@dataclass(frozen=True, slots=True)
class SlotCounts:
    calls: int
    retries: int = 0


class SlotQueue:
    """Gives every rollout its verdict after its latency and its wait for a slot: the oldest step first, in order."""

    incomplete_after_s = None
    num_rewards = 1
    may_change_verdicts = False

    def __init__(self, latency_s: Callable[[Rollout], float], slots: Slots, *, price_usd: float = 0.0) -> None:
        self._latency_s = latency_s
        self._slots = slots
        self._reward = Reward(value=1.0, attempts=1, cost_usd=price_usd)
        self._log = CallLog()
        self._groups: dict[str, _OpenGroup] = {}
        self._new: list[tuple[Rollout, _OpenGroup]] = []
        self._last_place = (-math.inf, -math.inf, -math.inf)
        self._num_groups = 0
        self.is_open = False

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self.is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.is_open = False

    def statistics(self) -> SlotCounts:
        return SlotCounts(len(self._log.started_s))

    def calls(self) -> CallLog:
        """Returns the calls that started until now; those still out end now, as an agent that closes would end them."""
        now_s, made = self._loop.time(), CallLog()
        for started_s, ended_s in zip(self._log.started_s, self._log.ended_s, strict=True):
            if started_s <= now_s:
                made.started_s.append(started_s)
                made.ended_s.append(min(ended_s, now_s))
        return made

    # -- for tickets --

    def open(self, *, due_step: int | None = None, source: str = REWARD_SOURCE) -> Ticket:
        return Ticket(self, self._loop, is_sealed=False, due_step=due_step, source=source)

    def submit(self, rollouts: Rollout | Iterable[Rollout], *, ticket: Ticket) -> Ticket:
        if not self._new:
            self._loop.call_soon(self._start)  # not now: groups whose rollouts end together are planned as a whole
        for rollout in [rollouts] if isinstance(rollouts, Rollout) else rollouts:
            group = self._groups.get(rollout.group_id)
            if group is None:
                group = self._opened(rollout, ticket)
            group.pending.put(rollout)
            place = (group.pending.due_step, rollout.position, rollout.index)
            if place < self._last_place:  # it would overtake calls whose times are planned
                raise FlowError(f"rollouts must come in the order of the queue, got {place} after {self._last_place}")
            self._last_place = place
            group.waiting.append(rollout)
            group.num_unplanned += 1
            self._new.append((rollout, group))
        return ticket

    def on_loop(self, action: Callable[[], T]) -> T:
        return action()

    def cancel(self, ticket: Ticket, group_ids: set[str] | None) -> None:
        """Forgets the groups. Only a flow that ends cancels: no call fails here, so no group is given up."""
        for group in ticket._groups(group_ids):
            group.is_delivered = True
            ticket._drop_group(group)

    def cancel_started(self, ticket: Ticket) -> None:
        raise NotImplementedError("the schedules of a plan give up no straggler")

    def sealed(self, ticket: Ticket) -> None:
        pass

    # -- calls --

    def _opened(self, rollout: Rollout, ticket: Ticket) -> _OpenGroup:
        pending = PendingGroup(rollout, self._num_groups, ticket, [False], self._loop.time())
        group = self._groups[rollout.group_id] = _OpenGroup(pending)
        self._num_groups += 1
        ticket._add_group(pending)
        return group

    def _start(self) -> None:
        """Plans the calls of the rollouts that arrived."""
        now_s, new = self._loop.time(), self._new
        self._new = []
        changed: dict[_OpenGroup, None] = {}
        for rollout, added in new:
            for group, started_s, ended_s in self._slots.add(added, self._latency_s(rollout), now_s):
                self._log.started_s.append(started_s)
                self._log.ended_s.append(ended_s)
                group.num_unplanned -= 1
                group.last_end_s = max(group.last_end_s, ended_s)
                changed[group] = None
        for group in changed:
            if group.wakes_at_s is None:
                self._wake_later(group)

    def _wake_later(self, group: _OpenGroup) -> None:
        group.wakes_at_s = group.last_end_s
        self._loop.call_at(group.wakes_at_s, self._wake, group)

    def _wake(self, group: _OpenGroup) -> None:
        """Lands the verdicts of a group whose calls have all ended; waits on if one was added meanwhile.

        Verdicts that come while others of their group are out change nothing in a flow, so one landing is enough.
        """
        if not self.is_open or group.pending.is_delivered:
            return
        if group.wakes_at_s != group.last_end_s:
            self._wake_later(group)
            return
        group.wakes_at_s = None
        if group.num_unplanned == 0:
            self._land(group.pending, group.waiting)
            group.waiting = []

    def _land(self, group: PendingGroup, rollouts: list[Rollout]) -> None:
        rewards = [self._reward] * len(rollouts)
        is_complete = group.land(group.columns[0], rollouts, rewards)
        group.ticket._on_verdicts(group, rollouts, rewards)
        if is_complete:
            group.is_delivered = True
            del self._groups[group.group_id]
            members, verdicts = group.members(), group.column_rewards(group.columns[0])
            scored = ScoredGroup(
                group_id=group.group_id, step=group.step, group_size=group.size, rollouts=members, rewards=verdicts
            )
            group.ticket._deliver(group, scored, is_stranded=False)
