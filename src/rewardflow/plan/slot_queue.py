"""Stands in for the reward agent in a simulation where calls can only wait for a slot.

Always true: a simulation with this queue equals the one with the real agent, moment by moment
(`tests/plan/test_slot_queue.py` runs both). It serves plans in which no call is refused, fails or is paced: nothing
else of the agent then takes time, and leaving it out halves the work of a simulated call. Every other plan is simulated
with the agent itself.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from rewardflow.errors import AgentHalted
from rewardflow.observe.events import REWARD_SOURCE
from rewardflow.plan.original_recipe import ScoresRollouts
from rewardflow.plan.settings import PlanSettings
from rewardflow.reward.groups.pending_group import PendingGroup
from rewardflow.reward.ticket import Ticket
from rewardflow.types import Reward, Rollout, ScoredGroup

T = TypeVar("T")


def needs_only_slots(settings: PlanSettings) -> bool:
    """Whether slots are the only thing that a call of this plan can wait for."""
    service = settings.service
    return service.rpm is None and service.tpm is None and service.failures == 0.0 and not settings.limits


@dataclass(frozen=True, slots=True)
class SlotCounts:
    calls: int
    retries: int = 0


class SlotQueue:
    """Calls a reward for the rollouts of the oldest step first, one group after another, at most `slots` at a time."""

    incomplete_after_s = None
    num_rewards = 1
    may_change_verdicts = False

    def __init__(self, reward: ScoresRollouts, *, slots: int, price_usd: float = 0.0) -> None:
        self._reward = reward
        self._price_usd = price_usd
        self._num_free = slots
        self._queue: list[tuple[int, int, int, int, Rollout, PendingGroup]] = []
        self._groups: dict[str, PendingGroup] = {}
        self._running: set[Coroutine[Any, Any, float]] = set()
        self._num_calls = 0
        self._num_groups = 0
        self._is_starting = False
        self.is_open = False

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self.is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.is_open = False
        for call in list(self._running):
            call.close()

    @property
    def cost_usd(self) -> float:
        return self._num_calls * self._price_usd

    def statistics(self) -> SlotCounts:
        return SlotCounts(self._num_calls)

    # -- for tickets --

    def open(self, *, due_step: int | None = None, source: str = REWARD_SOURCE) -> Ticket:
        return Ticket(self, self._loop, is_sealed=False, due_step=due_step, source=source)

    def submit(self, rollouts: Rollout | Iterable[Rollout], *, ticket: Ticket) -> Ticket:
        for rollout in [rollouts] if isinstance(rollouts, Rollout) else rollouts:
            group = self._groups.get(rollout.group_id)
            if group is None:
                group = PendingGroup(rollout, self._num_groups, ticket, [False], self._loop.time())
                self._groups[rollout.group_id] = group
                self._num_groups += 1
                ticket._add_group(group)
            group.put(rollout)
            entry = (group.due_step, group.position, group.number, rollout.index, rollout, group)
            heapq.heappush(self._queue, entry)
        if self._num_free and not self._is_starting:
            self._is_starting = True
            self._loop.call_soon(self._start)  # not now: rollouts that end together queue up before the first starts
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

    def _start(self) -> None:
        self._is_starting = False
        while self._num_free and self._queue and self.is_open:
            *_, rollout, group = heapq.heappop(self._queue)
            if group.is_delivered:
                continue
            self._num_free -= 1
            self._num_calls += 1
            call = self._reward.compute_score(rollout)
            self._running.add(call)
            self._advance(call, rollout, group, self._loop.time())

    def _advance(
        self,
        call: Coroutine[Any, Any, float],
        rollout: Rollout,
        group: PendingGroup,
        began_s: float,
        _: object = None,
    ) -> None:
        """Runs the call until it waits or ends. A task for each call would double the work."""
        if not self.is_open:
            return
        again = functools.partial(self._advance, call, rollout, group, began_s)
        try:
            awaited = call.send(None)
        except StopIteration as ended:
            self._running.discard(call)
            self._num_free += 1
            self._land(rollout, group, ended.value, began_s)
            self._start()
        except Exception as error:
            self.cancel(group.ticket, None)
            group.ticket._stop(AgentHalted(f"a simulated call must not fail here: {error!r}"))
        else:
            if awaited is None:  # a bare yield, as from asyncio.sleep(0)
                self._loop.call_soon(again)
            else:
                awaited._asyncio_future_blocking = False  # taken over from the coroutine; only a Task would reset it
                awaited.add_done_callback(again)

    def _land(self, rollout: Rollout, group: PendingGroup, value: float, began_s: float) -> None:
        if group.is_delivered:
            return
        reward = Reward(
            value=value, attempts=1, latency_s=self._loop.time() - began_s, cost_usd=self._price_usd, components={}
        )
        is_complete = group.land(group.columns[0], (rollout,), (reward,))
        group.ticket._on_verdicts(group, (rollout,), (reward,))
        if is_complete:
            group.is_delivered = True
            del self._groups[group.group_id]
            members, rewards = group.members(), group.column_rewards(group.columns[0])
            scored = ScoredGroup(
                group_id=group.group_id, step=group.step, group_size=group.size, rollouts=members, rewards=rewards
            )
            group.ticket._deliver(group, scored, is_stranded=False)
