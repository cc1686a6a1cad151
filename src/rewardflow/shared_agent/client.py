"""A run's side of a shared agent, with the face of `RewardAgent`.

Always true: every submitted rollout gets one verdict, once, whatever happens to the host: what has no verdict is kept
here and sent again after a restart, and a verdict that comes a second time finds nobody waiting. Rollouts never leave:
a group that is delivered holds the very records that were submitted. What is submitted in one turn of the loop goes in
one message, and so do the verdicts that are ready together. Whoever keeps the run's record is told what happens to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from types import TracebackType
from typing import Protocol, Self, TypeVar

from rewardflow import errors
from rewardflow.errors import AgentClosed, AgentHalted, BudgetExhausted, InvalidInput, SharedAgentGone
from rewardflow.events import REWARD_SOURCE, EventSink
from rewardflow.reward.on_loop import HomeLoop
from rewardflow.reward.pending import Note, PendingGroup
from rewardflow.reward.recorder import Recorder
from rewardflow.reward.ticket import Ticket
from rewardflow.shared_agent.messages import (
    Cancel,
    CancelStarted,
    Delivery,
    HostStatistics,
    Op,
    Packed,
    Score,
    Seal,
    Submit,
    Want,
    Welcome,
    check_travels,
    pack_rollout,
    unpack_reward,
)
from rewardflow.shared_agent.record import RunRecord
from rewardflow.types import FailureKind, Reward, Rollout, ScoredGroup

logger = logging.getLogger(__name__)

T = TypeVar("T")

_ROLLOUTS_A_MESSAGE = 1024  # so that packing them holds the loop for milliseconds, and both sides work at once
_MESSAGES_OUT = 8  # on a busy machine a message takes long, however small it is
_NO_TICKET = 0
_FIRST_RETRY_S, _LAST_RETRY_S = 0.05, 2.0
_MAX_WITNESSES = 8192
_BYE_S = 5.0
_UNDECIDED = ("cancelled", "budget", "outage")


class LineBroken(Exception):
    """A message may not have arrived, or its answer was lost; the host may be back soon."""


class Line(Protocol):
    """The way to a host. All of these raise `LineBroken` for what may pass, `SharedAgentGone` for what will not."""

    async def hello(self, client_id: str, run: str, share: float, records: bool) -> Welcome: ...

    async def post(self, client_id: str, ops: Sequence[Op]) -> bool: ...

    async def take(self, client_id: str, confirmed: int) -> Delivery | None: ...

    async def bye(self, client_id: str, confirmed: int) -> Delivery | None: ...

    async def statistics(self) -> HostStatistics: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStatistics:
    """What this client has asked for and got. The agent's own figures are in `await host_statistics()`."""

    submitted: int
    out: int
    scored: int
    failed: Mapping[str, int]
    imputed: int
    cached: int
    calls: int  # made for the verdicts that have come
    retries: int
    cost_usd: float
    tokens: int
    reconnects: int


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """A rollout without a verdict, and who waits for it: a group, or the caller of `score`."""

    serial: int
    rollout: Rollout
    ticket: int
    group: PendingGroup | None = None
    caller: asyncio.Future[Reward] | None = None

    @property
    def source(self) -> str:
        return REWARD_SOURCE if self.group is None else self.group.ticket.source


class SharedAgent:
    """`async with connect(spec, run="job-1") as agent:`, then as with a `RewardAgent`."""

    def __init__(
        self,
        line: Line,
        *,
        run: str,
        share: float = 1.0,
        sends_tokens: bool = False,
        give_up_s: float = 600.0,
        run_dir: str | PathLike[str] | None = None,
        sink: EventSink | None = None,
    ) -> None:
        if run_dir is not None and sink is not None:
            raise InvalidInput("events go to one place, got a run_dir and a sink")
        self._run_dir = run_dir
        self._sink = sink
        self._record: RunRecord | None = None
        self._resources = contextlib.AsyncExitStack()
        self.run = run
        self.share = share
        self._line = line
        self._sends_tokens = sends_tokens
        self._give_up_s = give_up_s
        self.id = uuid.uuid4().hex
        self._welcome: Welcome | None = None
        self._tasks = asyncio.TaskGroup()
        self._home: HomeLoop | None = None
        self._is_open = False
        self._halted: AgentHalted | None = None
        self._sent: dict[int, _Sent] = {}
        self._groups: dict[tuple[int, str], PendingGroup] = {}
        self._ticket_numbers: dict[Ticket, int] = {}  # of those that may still get or give something
        self._witnesses: dict[int, _Sent] = {}
        self._to_send: deque[Op | _Sent] = deque()
        self._has_to_send = asyncio.Event()
        self._is_connected = asyncio.Event()
        self._message_arrived = asyncio.Event()
        self._messages_out: set[asyncio.Task[None]] = set()
        self._confirmed = self._num_serials = self._num_tickets = self._num_groups = self._num_reconnects = 0
        self._submitted = self._scored = self._imputed = self._cached = self._tokens = self._calls = self._retries = 0
        self._failed: Counter[str] = Counter()
        self._cost_usd = 0.0

    # -- lifetime ----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._home is not None:
            raise AgentClosed("a SharedAgent can be entered once; connect again")
        self._home = HomeLoop()
        self._record = self._open_record(self._home.loop)
        try:
            self._welcome = await self._hello()
        except BaseException:
            await self._resources.aclose()
            raise
        if self._record is not None:
            self._record.opened(self._welcome)
        await self._tasks.__aenter__()
        self._is_open = True
        self._is_connected.set()
        self._io = (self._tasks.create_task(self._send()), self._tasks.create_task(self._receive()))
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give up what is out, here and at the host; in bounded time."""
        if self._home is not None:
            self._home.check_is_running()
        self._is_open = False
        for task in (*self._io, *self._messages_out):
            task.cancel()
        cancelled = exc if isinstance(exc, asyncio.CancelledError) else None
        try:
            await self._tasks.__aexit__(type(cancelled) if cancelled else None, cancelled, None)
        finally:
            self._end(None, "cancelled", "the client of the shared agent was closed")
            with contextlib.suppress(LineBroken, AgentHalted, TimeoutError):
                async with asyncio.timeout(_BYE_S):
                    last = await self._line.bye(self.id, self._confirmed)
                    if self._record is not None and last is not None:
                        self._record.heard(last)
            if self._record is not None:
                self._record.closed(self.statistics())
            await self._resources.aclose()

    def _open_record(self, loop: asyncio.AbstractEventLoop) -> RunRecord | None:
        if self._run_dir is None:
            return None if self._sink is None else RunRecord(self._sink)
        recorder = Recorder(self._run_dir, loop)
        self._resources.push_async_callback(recorder.aclose)
        return RunRecord(recorder, recorder.step_idle)

    def _halt(self, halted: AgentHalted) -> None:
        self._end(halted, "budget" if isinstance(halted, BudgetExhausted) else "outage", str(halted))

    def _end(self, halted: AgentHalted | None, kind: FailureKind, message: str) -> None:
        """Nothing more will come: give everything that is out a failed verdict of this kind, and let nobody wait."""
        reward = Reward(kind=kind, error=message)
        self._halted = self._halted or halted
        for group in list(self._groups.values()):
            group.cut_short(reward)
            self._deliver(group)
        for sent in list(self._sent.values()):
            self._count(reward)
            if sent.caller is not None and not sent.caller.done():
                if halted is None:
                    sent.caller.set_result(reward)
                else:
                    sent.caller.set_exception(halted)
        for serial in list(self._sent):
            self._take_out(serial)
        for ticket in list(self._ticket_numbers):
            ticket._stop(halted)
        self._ticket_numbers.clear()

    # -- submitting --------------------------------------------------------------------------------------------------

    def submit(self, rollouts: Rollout | Iterable[Rollout], *, ticket: Ticket | None = None) -> Ticket:
        """Start scoring; returns at once. As `RewardAgent.submit`."""
        batch = [rollouts] if isinstance(rollouts, Rollout) else list(rollouts)
        for rollout in batch:
            check_travels(rollout)
        return self.on_loop(lambda: self._submit(batch, ticket))

    def open(self, *, due_step: int | None = None, source: str = REWARD_SOURCE) -> Ticket:
        """A ticket to submit to while rollouts are generated. As `RewardAgent.open`."""
        return self.on_loop(lambda: self._new_ticket(is_sealed=False, due_step=due_step, source=source))

    async def score(self, rollout: Rollout) -> Reward:
        """The verdict on one rollout: as soon as it is there, or, if it depends on its group, when that is judged.

        Any worker of the run may submit the rest of the group. Cancelling the caller gives the verdict up.
        """
        check_travels(rollout)
        self._check_open()
        if self._home is None or asyncio.get_running_loop() is not self._home.loop:
            raise InvalidInput("score must be awaited on the loop that the client was opened on")
        caller: asyncio.Future[Reward] = asyncio.get_running_loop().create_future()
        sent = self._take_in(rollout, _NO_TICKET, caller=caller)
        self._put([sent])
        try:
            return await caller
        finally:
            if self._take_out(sent.serial) is not None:
                self._put([Cancel([sent.serial])])

    def _submit(self, batch: Sequence[Rollout], ticket: Ticket | None) -> Ticket:
        self._check_open()
        is_new = ticket is None
        ticket = ticket or self._new_ticket(is_sealed=True)
        if ticket.is_sealed and not is_new:
            raise InvalidInput("this ticket is sealed: open one with agent.open() to submit as rollouts are generated")
        groups = self._grouped(batch, ticket)
        number = self._ticket_numbers[ticket]
        self._put([self._take_in(one, number, group=group) for one, group in zip(batch, groups, strict=True)])
        if is_new:
            self._put([Seal(number)])
            self._forget_if_over(ticket)
        return ticket

    def _grouped(self, batch: Sequence[Rollout], ticket: Ticket) -> list[PendingGroup]:
        """The group of each rollout, which it has joined; if one does not fit, none has."""
        groups: list[PendingGroup] = []
        try:
            for rollout in batch:
                group = self._group_of(rollout, ticket)
                group.put(rollout)
                groups.append(group)
                group.ticket._wake()
        except BaseException:
            for rollout, group in zip(batch, groups, strict=False):
                group.take_out(rollout)
                if group.num_in == 0:
                    self._groups.pop((group.step, group.group_id), None)
                    group.ticket._disown(group)
            raise
        return groups

    def _group_of(self, rollout: Rollout, ticket: Ticket) -> PendingGroup:
        key = (rollout.step, rollout.group_id)
        group = self._groups.get(key)
        if group is None:
            assert self._home is not None
            self._num_groups += 1
            group = PendingGroup(rollout, self._num_groups, ticket, _ONE_COLUMN, self._home.loop.time())
            self._groups[key] = group
            ticket._adopt(group)
        return group

    def _take_in(
        self,
        rollout: Rollout,
        ticket: int,
        *,
        group: PendingGroup | None = None,
        caller: asyncio.Future[Reward] | None = None,
    ) -> _Sent:
        self._num_serials += 1
        self._submitted += 1
        sent = self._sent[self._num_serials] = _Sent(self._num_serials, rollout, ticket, group, caller)
        if self._record is not None:
            self._record.sent(rollout, sent.source)
        return sent

    def _take_out(self, serial: int) -> _Sent | None:
        """It has its verdict, or wants none any longer."""
        sent = self._sent.pop(serial, None)
        if sent is not None and self._record is not None:
            self._record.ended(sent.rollout, sent.source)
        return sent

    def _new_ticket(self, *, is_sealed: bool, due_step: int | None = None, source: str = REWARD_SOURCE) -> Ticket:
        self._check_open()
        assert self._home is not None
        ticket = Ticket(
            self,
            self._home.loop,
            is_sealed=is_sealed,
            run=self.run,
            share=self.share,
            due_step=due_step,
            source=source,
        )
        self._num_tickets += 1
        self._ticket_numbers[ticket] = self._num_tickets
        return ticket

    def _check_open(self) -> None:
        if self._halted is not None:
            raise type(self._halted)(str(self._halted))
        if not self._is_open:
            raise AgentClosed("the client is not open: use `async with connect(...) as agent`")

    # -- for tickets -------------------------------------------------------------------------------------------------

    def on_loop(self, action: Callable[[], T]) -> T:
        """Run a short action on the client's loop, from whatever thread we are in."""
        if not self._is_open or self._home is None:
            self._check_open()
            raise AgentClosed("the client is not open: use `async with connect(...) as agent`")
        return self._home.run(action)

    def cancel(self, ticket: Ticket, group_ids: set[str] | None) -> None:
        """Here at once; the host is told to stop its calls."""
        groups = set(ticket._groups(group_ids))
        serials = [sent.serial for sent in self._sent.values() if sent.group in groups]
        reward = Reward(kind="cancelled", error="cancelled by the caller")
        for serial in serials:
            sent = self._take_out(serial)
            assert sent is not None
            assert sent.group is not None
            self._count(reward)
            ticket._landed(sent.group, [sent.rollout], [reward])
        for group in groups:
            group.cut_short(reward)
            self._deliver(group)
        if serials:
            self._put([Cancel(serials)])

    def cancel_started(self, ticket: Ticket) -> None:
        number = self._ticket_numbers.get(ticket)
        if number is not None:
            self._put([CancelStarted(number)])

    def sealed(self, ticket: Ticket) -> None:
        number = self._ticket_numbers.get(ticket)
        if number is not None:
            self._put([Seal(number)])
            self._forget_if_over(ticket)

    def _forget_if_over(self, ticket: Ticket) -> None:
        if ticket.is_over and self._halted is None:  # or it is still to be told why
            self._ticket_numbers.pop(ticket, None)

    # -- the line ----------------------------------------------------------------------------------------------------

    def _put(self, items: Sequence[Op | _Sent]) -> None:
        self._to_send.extend(items)
        self._has_to_send.set()

    async def _send(self) -> None:
        """What waits, a message's worth at a time. Rollouts need no order among themselves; everything else waits for
        what went before, and lets nothing pass.
        """
        while True:
            await self._has_to_send.wait()
            await self._is_connected.wait()
            ops = self._next_ops()
            if not ops:
                self._has_to_send.clear()
                continue
            is_free = all(isinstance(op, Submit | Score) for op in ops)
            await self._wait_for_messages_out(fewer_than=_MESSAGES_OUT if is_free else 1)
            message = self._tasks.create_task(self._post(ops, self._num_reconnects))
            self._messages_out.add(message)
            message.add_done_callback(self._arrived)
            if not is_free:
                await self._wait_for_messages_out(fewer_than=1)

    async def _wait_for_messages_out(self, *, fewer_than: int) -> None:
        while len(self._messages_out) >= fewer_than:
            self._message_arrived.clear()
            await self._message_arrived.wait()

    async def _post(self, ops: Sequence[Op], era: int) -> None:
        """Until it has arrived, or a reconnect has put everything anew that it holds."""
        try:
            for retry_s in _retries():
                with contextlib.suppress(LineBroken):
                    if era != self._num_reconnects or await self._line.post(self.id, ops):
                        return
                    # The host does not know us. The receiver hears the same, and says hello.
                await asyncio.sleep(retry_s)
        except AgentHalted:
            return  # the receiver tells everybody

    def _arrived(self, message: asyncio.Task[None]) -> None:
        self._messages_out.discard(message)
        self._message_arrived.set()

    def _next_ops(self) -> list[Op]:
        """What waits to be sent, up to a message's worth: either rollouts, or what must keep its place."""
        by_ticket: dict[int, list[tuple[int, Packed]]] = {}
        tickets: dict[int, Ticket] = {}
        room = _ROLLOUTS_A_MESSAGE
        while self._to_send and room:
            item = self._to_send[0]
            if not isinstance(item, _Sent):
                break
            self._to_send.popleft()
            if item.serial in self._sent or item.serial in self._witnesses:  # and not given up before it left
                packed = pack_rollout(item.rollout, with_tokens=self._sends_tokens)
                by_ticket.setdefault(item.ticket, []).append((item.serial, packed))
                if item.group is not None:
                    tickets[item.ticket] = item.group.ticket
                room -= 1
        if by_ticket:
            lone = by_ticket.pop(_NO_TICKET, None)
            submits: list[Op] = [
                Submit(number, rollouts, tickets[number].due_step, tickets[number].source)
                for number, rollouts in by_ticket.items()
            ]
            return submits if lone is None else [*submits, Score(lone)]
        others: list[Op] = []
        while self._to_send and not isinstance(self._to_send[0], _Sent):
            others.append(self._to_send.popleft())  # type: ignore[arg-type]  # it was just looked at
        return others

    async def _receive(self) -> None:
        while True:
            try:
                delivery = await self._take()
                if delivery is None:
                    await self._reconnect()
                    continue
            except AgentHalted as gone:
                self._halt(gone)
                return
            self._confirmed = delivery.number
            self._land(delivery)
            if delivery.halt is not None:
                return

    async def _take(self) -> Delivery | None:
        try:
            return await self._line.take(self.id, self._confirmed)
        except LineBroken as error:
            logger.info("the shared agent does not answer: %s", error)
            return None

    async def _reconnect(self) -> None:
        """Say hello until somebody answers, then send again all that has no verdict."""
        self._is_connected.clear()
        self._welcome = await self._hello()
        self._num_reconnects += 1
        self._confirmed = 0
        if self._record is not None:
            self._record.reconnected()
        self._to_send.clear()
        sealed = {self._ticket_numbers[ticket] for ticket in self._ticket_numbers if ticket.is_sealed}
        self._put([Want(list(self._sent), self._num_serials)])
        self._put([*self._sent.values(), *self._renumbered_witnesses()])
        self._put([Seal(number) for number in sorted(sealed)])
        self._is_connected.set()
        logger.warning("back at the shared agent; %d rollouts without a verdict were sent again", len(self._sent))

    async def _hello(self) -> Welcome:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._give_up_s
        for retry_s in _retries():
            try:
                return await self._line.hello(self.id, self.run, self.share, self._record is not None)
            except LineBroken as error:
                if loop.time() + retry_s > until_s:
                    raise SharedAgentGone(
                        f"the shared agent must answer within {self._give_up_s:g} s, it did not: {error}"
                    ) from error
                await asyncio.sleep(retry_s)
        raise AssertionError("retries never end")

    # -- verdicts ----------------------------------------------------------------------------------------------------

    def _land(self, delivery: Delivery) -> None:
        if delivery.halt is not None:
            kind = getattr(errors, delivery.halt.error, AgentHalted)
            self._halted = kind(delivery.halt.message)
        if self._record is not None:
            self._record.heard(delivery)
        for serial, packed, waited_s in delivery.verdicts:
            sent = self._take_out(serial)
            if sent is not None:
                self._land_one(sent, unpack_reward(packed), waited_s)
        if self._halted is not None:
            self._halt(self._halted)

    def _land_one(self, sent: _Sent, reward: Reward, waited_s: float) -> None:
        self._count(reward)
        is_undecided = self._halted is not None and reward.kind in _UNDECIDED
        if self.needs_groups and (sent.group is None or not sent.group.is_whole):
            self._keep_as_witness(sent)
        if sent.caller is not None:
            if self._record is not None:
                self._record.judged(sent.rollout, reward, waited_s=waited_s, source=sent.source)
            if sent.caller.done():
                return
            if is_undecided and self._halted is not None:
                sent.caller.set_exception(self._halted)
            else:
                sent.caller.set_result(reward)
            return
        group = sent.group
        assert group is not None
        if self._record is not None:
            group.notes[sent.rollout.index] = Note(waited_s, 0.0)
        is_complete = group.land(group.columns[0], (sent.rollout,), (reward,))
        group.ticket._landed(group, (sent.rollout,), (reward,))
        if is_complete:
            self._deliver(group)

    def _keep_as_witness(self, sent: _Sent) -> None:
        """Whoever holds the rest of the group may have to ask again, and it must then be whole once more."""
        self._witnesses[sent.serial] = sent
        if len(self._witnesses) > _MAX_WITNESSES:
            del self._witnesses[next(iter(self._witnesses))]

    def _renumbered_witnesses(self) -> Iterable[_Sent]:
        """Their old numbers are settled: at a host that is still there they would count as messages that come late."""
        first = self._num_serials + 1
        self._num_serials += len(self._witnesses)
        witnesses = [replace(sent, serial=first + i) for i, sent in enumerate(self._witnesses.values())]
        self._witnesses = {sent.serial: sent for sent in witnesses}
        return witnesses

    def _deliver(self, group: PendingGroup) -> None:
        if group.is_delivered:  # given up by a watcher that was told of its last verdict
            return
        group.is_delivered = True
        self._groups.pop((group.step, group.group_id), None)
        rewards = group.column_rewards(group.columns[0])
        scored = ScoredGroup(
            group_id=group.group_id, step=group.step, group_size=group.size, rollouts=group.members(), rewards=rewards
        )
        if self._record is not None:
            self._record.delivered(group, scored)
        is_stranded = self._halted is not None and any(reward.kind in _UNDECIDED for reward in rewards)
        group.ticket._deliver(group, scored, is_stranded=is_stranded)
        self._forget_if_over(group.ticket)

    def _count(self, reward: Reward) -> None:
        if reward.value is None:
            self._failed[reward.kind or "user_error"] += 1
        else:
            self._scored += 1
        self._imputed += reward.imputed
        self._cached += reward.cached
        if not reward.cached:  # those were made for an earlier life of the run
            self._calls += reward.attempts
            self._retries += max(0, reward.attempts - 1)
        self._cost_usd += reward.cost_usd
        self._tokens += reward.tokens

    # -- being seen --------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._is_open and self._halted is None

    @property
    def name(self) -> str:
        return self._known.name

    @property
    def num_rewards(self) -> int:
        """Always 1: the host combines several rewards, and a ticket's watcher hears of each rollout once."""
        return 1

    @property
    def may_change_verdicts(self) -> bool:
        """Always False: what comes from the host is final."""
        return False

    @property
    def needs_groups(self) -> bool:
        """Whether a verdict may depend on the other rollouts of its group."""
        return self._known.needs_groups

    @property
    def incomplete_after_s(self) -> float | None:
        return self._known.incomplete_after_s

    @property
    def _known(self) -> Welcome:
        if self._welcome is None:
            raise AgentClosed("the client is not open: use `async with connect(...) as agent`")
        return self._welcome

    def statistics(self) -> ClientStatistics:
        return ClientStatistics(
            submitted=self._submitted,
            out=len(self._sent),
            scored=self._scored,
            failed=dict(self._failed),
            imputed=self._imputed,
            cached=self._cached,
            calls=self._calls,
            retries=self._retries,
            cost_usd=self._cost_usd,
            tokens=self._tokens,
            reconnects=self._num_reconnects,
        )

    async def host_statistics(self) -> HostStatistics:
        """Of the agent that all runs share."""
        return await self._line.statistics()


_ONE_COLUMN = (False,)


def _retries() -> Iterator[float]:
    retry_s = _FIRST_RETRY_S
    while True:
        yield retry_s
        retry_s = min(2 * retry_s, _LAST_RETRY_S)
