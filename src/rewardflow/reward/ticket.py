"""The ticket that `submit` returns, from which the caller takes groups as they complete.

Always true: every group leaves its ticket once: by iteration, `take`, `all` or `wait`, or on the exception that says
why the agent stopped. Waiting for a group that never gets all of its rollouts ends in an error that names the missing
ones.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from rewardflow.errors import AgentClosed, AgentHalted, IncompleteGroup, InvalidInput
from rewardflow.observe.events import REWARD_SOURCE, EventSink
from rewardflow.types import Reward, Rollout, ScoredGroup

if TYPE_CHECKING:
    from rewardflow.reward.groups.pending_group import PendingGroup

Watcher = Callable[[Sequence[Rollout], Sequence[Reward]], None]
T = TypeVar("T")


class TicketOwner(Protocol):
    """The methods of an agent that its tickets call."""

    @property
    def incomplete_after_s(self) -> float | None: ...

    def submit(self, rollouts: Rollout | Iterable[Rollout], *, ticket: Ticket) -> Ticket: ...

    def on_loop(self, action: Callable[[], T]) -> T: ...

    def cancel(self, ticket: Ticket, group_ids: set[str] | None) -> None: ...

    def cancel_started(self, ticket: Ticket) -> None: ...

    def sealed(self, ticket: Ticket) -> None: ...


class Ticket:
    """Gives groups in completion order: `async for group in ticket`. From `agent.submit(...)` or `agent.open()`."""

    def __init__(
        self,
        agent: TicketOwner,
        loop: asyncio.AbstractEventLoop,
        *,
        is_sealed: bool,
        run: str = "default",
        share: float = 1.0,
        due_step: int | None = None,
        source: str = REWARD_SOURCE,
        sink: EventSink | None = None,
    ) -> None:
        self.run = run
        self.share = share
        self.due_step = due_step  # the step that its calls queue with; None: the rollout's own step
        self.source = source
        self._sink = sink
        self._agent = agent
        self._loop = loop
        self._was_opened = not is_sealed
        self._is_sealed = is_sealed
        self._pending: dict[PendingGroup, None] = {}  # an ordered set
        self._ready: deque[tuple[int, ScoredGroup]] = deque()
        self._stranded: list[ScoredGroup] = []
        self._halted: AgentHalted | None = None
        self._is_closed = False
        self._waiters: list[asyncio.Future[None]] = []
        self._fewest_wanted = math.inf  # how many ready groups wake the waiters
        self._maybe_incomplete: deque[PendingGroup] = deque()  # groups that may lack rollouts; whole ones leave lazily
        self._watcher: Watcher | None = None

    # -- taking groups -----------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ScoredGroup:
        """Waits for the next group to complete."""
        if groups := await self.take(1):
            return groups[0]
        raise StopAsyncIteration

    async def take(self, count: int) -> list[ScoredGroup]:
        """Waits for the next `count` groups to complete; returns fewer only if the ticket ends first."""
        if count < 0:
            raise InvalidInput(f"count must not be negative, got count={count}")
        while True:
            available = await self._wait(count)
            taken = self._pop(min(count, available))
            if len(taken) == min(count, available):
                return [group for _, group in taken]
            self._ready.extendleft(reversed(taken))  # another thread took some; wait for more

    async def all(self) -> list[ScoredGroup]:
        """Waits until the last group is complete; returns all groups not taken yet, in the order of submission."""
        try:
            await self._wait(None)
        except AgentHalted as halted:
            raise self._with_what_is_ready(halted) from None
        return self._drain()

    def wait(self, timeout_s: float | None = None) -> list[ScoredGroup]:
        """Does the same as `all()` for other threads than the agent's: blocks until the last group is complete."""
        if _running_loop() is self._loop:
            raise InvalidInput("wait() would block the agent's own event loop; use `await ticket.all()` there")
        if self._loop.is_closed():
            self._settled_count(None)
            return self._drain()
        future = asyncio.run_coroutine_threadsafe(self._wait_for(None), self._loop)
        try:
            future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise TimeoutError(f"{self.num_pending} groups were not complete after {timeout_s} s") from None
        except concurrent.futures.CancelledError as error:  # nobody but code on the loop can cancel the wait
            raise AgentClosed("code on the agent's event loop cancelled tasks that it did not start") from error
        except AgentHalted as halted:
            raise self._with_what_is_ready(halted) from None
        return self._drain()

    # -- giving rollouts ---------------------------------------------------------------------------------------------

    def submit(self, rollouts: Rollout | Iterable[Rollout]) -> None:
        """Adds one or more rollouts; for tickets from `agent.open()`."""
        self._agent.submit(rollouts, ticket=self)

    def seal(self) -> None:
        """Says that no more rollouts will come; the ticket ends when its last group was taken."""
        self._agent.on_loop(self._seal)

    def watch(self, watcher: Watcher) -> None:
        """Sets a callback for each verdict, before its group is complete; post-processing may still change it."""
        self._watcher = watcher

    def cancel(self, group_ids: Iterable[str] | None = None) -> None:
        """Cancels these groups, by default all; rollouts without a verdict get a failed one of kind `cancelled`."""
        wanted = None if group_ids is None else set(group_ids)
        self._agent.on_loop(lambda: self._agent.cancel(self, wanted))

    def cancel_started(self) -> None:
        """Cancels the groups in `started`, which have a call in flight; those in the queue may still start."""
        self._agent.on_loop(lambda: self._agent.cancel_started(self))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.seal()

    # -- state -------------------------------------------------------------------------------------------------------

    @property
    def is_sealed(self) -> bool:
        """Whether the ticket takes no more rollouts."""
        return self._is_sealed

    @property
    def num_ready(self) -> int:
        """Complete groups that wait to be taken."""
        return len(self._ready)

    @property
    def num_pending(self) -> int:
        """Groups that are not complete yet."""
        return len(self._pending)

    @property
    def missing(self) -> Mapping[str, tuple[int, ...]]:
        """For each group that lacks rollouts, the indices not submitted yet."""
        return {group.group_id: group.missing() for group in list(self._pending) if not group.is_whole}

    @property
    def started(self) -> frozenset[str]:
        """Groups that have all of their rollouts and at least one started call, but not all verdicts."""
        return frozenset(group.group_id for group in list(self._pending) if group.is_whole and group.has_started)

    # -- for the agent -----------------------------------------------------------------------------------------------

    @property
    def sink(self) -> EventSink | None:
        """The sink for events of this ticket's calls."""
        return self._sink

    def _check_takes_more(self) -> None:
        if self._is_sealed:
            raise InvalidInput("this ticket is sealed: open one with agent.open() to submit as rollouts are generated")

    def _add_group(self, group: PendingGroup) -> None:
        self._pending[group] = None
        self._maybe_incomplete.append(group)

    def _on_verdicts(self, group: PendingGroup, rollouts: Sequence[Rollout], rewards: Sequence[Reward]) -> None:
        if self._watcher is not None:
            self._watcher(rollouts, rewards)

    def _drop_group(self, group: PendingGroup) -> None:
        self._pending.pop(group, None)

    def _groups(self, wanted: set[str] | None) -> list[PendingGroup]:
        return [group for group in self._pending if wanted is None or group.group_id in wanted]

    def _deliver(self, pending: PendingGroup, group: ScoredGroup, *, is_stranded: bool) -> None:
        del self._pending[pending]
        if is_stranded:
            self._stranded.append(group)
        else:
            self._ready.append((pending.number, group))
        if len(self._ready) >= self._fewest_wanted or not self._pending:
            self._wake()

    def _stop(self, halted: AgentHalted | None) -> None:
        """Ends every wait, because the agent halted or closed and no more groups will complete."""
        self._halted = self._halted or halted
        self._is_closed = True
        self._wake()

    def _seal(self) -> None:
        self._is_sealed = True
        self._wake()
        self._agent.sealed(self)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()
        self._fewest_wanted = math.inf

    # -- waiting -----------------------------------------------------------------------------------------------------

    async def _wait(self, count: int | None) -> int:
        """Waits on the agent's loop from any loop. The caller's thread takes the groups, so none gets lost."""
        if asyncio.get_running_loop() is self._loop:
            return await self._wait_for(count)
        if self._loop.is_closed():
            return self._settled_count(count)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._wait_for(count), self._loop))

    def _settled_count(self, count: int | None) -> int:
        """Returns the number of ready groups after the agent's loop has ended, when no more will come."""
        self._raise_if_halted(count)
        if self._pending:
            raise AgentClosed("the agent's event loop ended before the agent was closed")
        return len(self._ready)

    async def _wait_for(self, count: int | None) -> int:
        """Waits until `count` groups are ready (None: until the ticket ends); returns how many are ready."""
        while count is None or len(self._ready) < count:
            if self.is_over:
                self._raise_if_halted(count)
                break
            await self._wait_for_change(count)
        return len(self._ready)

    def _raise_if_halted(self, count: int | None) -> None:
        is_cut_short = bool(self._stranded) or not self._is_sealed
        if self._halted is not None and is_cut_short and (count is None or not self._ready):
            stranded, self._stranded = tuple(self._stranded), []
            raise type(self._halted)(str(self._halted), stranded)

    @property
    def is_over(self) -> bool:
        """Whether the last group is complete and no more rollouts can come."""
        return not self._pending and (self._is_sealed or self._is_closed)

    def _incomplete_timeout_s(self) -> float | None:
        """Returns how long to wait if every pending group only lacks rollouts; None if verdicts are still to come."""
        is_only_incomplete = self._is_sealed and all(not group.is_whole for group in self._pending)
        if not is_only_incomplete or any(group.num_outstanding for group in self._pending):
            return None
        return 0.0 if self._was_opened else self._agent.incomplete_after_s

    async def _wait_for_change(self, count: int | None) -> None:
        timeout_s = self._incomplete_timeout_s()
        wanted = math.inf if count is None else count
        if self._has_incomplete_groups():
            wanted = 0  # any change may leave only incomplete groups, so wake on each
        self._fewest_wanted = min(self._fewest_wanted, wanted)
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            raise IncompleteGroup(self._missing_text(f"nothing came for {timeout_s:g} s")) from None

    def _has_incomplete_groups(self) -> bool:
        groups = self._maybe_incomplete
        while groups and (groups[0].is_whole or groups[0] not in self._pending):
            groups.popleft()
        return bool(groups)

    def _missing_text(self, when: str) -> str:
        lacking = [f"{name!r} lacks index {', '.join(map(str, indices))}" for name, indices in self.missing.items()]
        shown = "; ".join(lacking[:5]) + (f"; and {len(lacking) - 5} more" if len(lacking) > 5 else "")
        return f"every group must get all of its rollouts, but {when} and group {shown}"

    def _drain(self) -> list[ScoredGroup]:
        taken = sorted(self._ready, key=lambda numbered: numbered[0])
        self._ready.clear()
        return [group for _, group in taken]

    def _with_what_is_ready(self, halted: AgentHalted) -> AgentHalted:
        return type(halted)(str(halted), (*self._drain(), *halted.groups))

    def _pop(self, count: int) -> list[tuple[int, ScoredGroup]]:
        taken = []
        with contextlib.suppress(IndexError):
            for _ in range(count):
                taken.append(self._ready.popleft())
        return taken


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
