"""Makes the calls of a client's jobs at the host: sends them in batches, and resolves each with the host's verdict.

Always true: a serial number names one request for ever, and later requests have higher numbers. A job stays here until
its verdict came or it was cancelled, so that it can be sent again; a verdict that comes a second time is ignored. All
jobs added in one turn of the loop go in one message, if they fit. Rollouts need no order among themselves, so several
messages of rollouts may be in flight at once; any other request is sent alone, after all earlier messages and before
all later ones. A rollout that is cancelled before it is sent is not sent, also if the host had no room for it before.
A message that the host refuses is sent again in halves, and a rollout that it refuses alone has failed.
Where verdicts depend on groups, some jobs with a verdict are kept too, up to a limit: the process that holds the rest
of the group may have to submit it again, and the group must then be whole.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from rewardflow.reward.groups.assembly import AssemblyStatistics
from rewardflow.reward.groups.job import Job
from rewardflow.reward.ticket import Ticket
from rewardflow.shared_agent.connection import Connection, MessageRefused
from rewardflow.shared_agent.messages import (
    Cancel,
    CancelStarted,
    Op,
    Packed,
    PackedVerdict,
    ScoreRequest,
    Seal,
    StillWanted,
    Submit,
    pack_rollout,
    text_size,
    unpack_reward,
)
from rewardflow.types import Reward

_MAX_KEPT: Final = 8192
_ROLLOUTS_A_MESSAGE: Final = 1024  # packing them blocks the loop for milliseconds only, and both sides work at once
_BYTES_A_MESSAGE: Final = 8 << 20  # the host takes a message as a whole or not at all
_MESSAGES_OUT: Final = 8  # on a busy machine even a small message takes long


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStatistics:
    """One client's verdicts, and the calls made for them. For the agent's own figures see `await host_statistics()`."""

    verdicts: AssemblyStatistics
    out: int  # rollouts without a verdict
    calls: int  # made for the verdicts received so far
    retries: int
    cost_usd: float
    tokens: int
    reconnects: int


class NumberedJob(NamedTuple):
    serial: int
    job: Job


class RemoteCalls:
    """All calls of one client, by serial number: a `CallMaker`, whose calls the host makes.

    `run` sends; `settle` takes what the host delivers; `stop` ends the messages that are out.
    """

    def __init__(self, connection: Connection, tasks: asyncio.TaskGroup, *, sends_tokens: bool = False) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._jobs: dict[int, Job] = {}
        self._serials: dict[Job, int] = {}
        self._kept_for_groups: dict[int, Job] = {}
        self._last = 0
        self._tickets: dict[Ticket, int] = {}  # the numbers by which the host knows them
        self._num_tickets = 0
        self._sender = _Sender(connection, tasks, self, sends_tokens=sends_tokens)
        self._is_stopped = False
        self._calls = self._retries = self._tokens = 0
        self._cost_usd = 0.0

    def __len__(self) -> int:
        return len(self._jobs)

    async def run(self) -> None:
        """Sends what is added, until it is cancelled."""
        await self._sender.run()

    def stop(self) -> None:
        """Sends nothing more: the host has halted, or the client ends."""
        self._is_stopped = True
        self._sender.stop()

    # -- for the assembly --------------------------------------------------------------------------------------------

    def add(self, job: Job) -> None:
        job.queued_s = self._loop.time()
        self._last += 1
        self._jobs[self._last], self._serials[job] = job, self._last
        self._sender.put([NumberedJob(self._last, job)])

    def prune(self) -> None:
        """Tells the host which verdicts are no longer wanted, because their jobs were cancelled here."""
        self._withdraw([job for job in self._serials if job.is_done])

    def withdraw(self, job: Job) -> None:
        """Tells the host that nobody waits for this job's verdict."""
        self._withdraw([job] if job in self._serials else [])

    def _withdraw(self, jobs: Sequence[Job]) -> None:
        cancelled = [serial for job in jobs if self._take_out(serial := self._serials[job])]
        if cancelled and not self._is_stopped:
            self._sender.put([Cancel(cancelled)])

    def _take_out(self, serial: int) -> Job | None:
        """Removes a job that has its verdict or was cancelled; None if it was removed before."""
        job = self._jobs.pop(serial, None)
        if job is not None:
            del self._serials[job]
            if job.is_done:
                self._forget_if_over(job.group.ticket)
        return job

    def drain(self) -> None:
        """Does nothing: the host has ended its calls before it says that it has halted."""

    def saving(self) -> None:
        """Does nothing: the host's journal is the only one."""

    def saved(self, job: Job, cost_usd: float) -> None:
        """Does nothing: the host's journal is the only one."""

    # -- tickets -----------------------------------------------------------------------------------------------------

    def register(self, ticket: Ticket) -> None:
        """Gives a ticket its number; rollouts of tickets without one are sent by themselves."""
        self._num_tickets += 1
        self._tickets[ticket] = self._num_tickets

    def number_of(self, ticket: Ticket) -> int | None:
        return self._tickets.get(ticket)

    def cancel_started(self, ticket: Ticket) -> None:
        if (number := self._tickets.get(ticket)) is not None:
            self._sender.put([CancelStarted(number)])

    def seal(self, ticket: Ticket) -> None:
        if (number := self._tickets.get(ticket)) is not None:
            self._sender.put([Seal(number)])
            self._forget_if_over(ticket)

    def _forget_if_over(self, ticket: Ticket) -> None:
        if ticket.is_over:
            self._tickets.pop(ticket, None)

    # -- verdicts ----------------------------------------------------------------------------------------------------

    def settle(self, verdicts: Iterable[PackedVerdict], *, needs_groups: bool) -> None:
        """Resolves jobs with verdicts from the host."""
        for serial, packed, waited_s in verdicts:
            job = self._take_out(serial)
            if job is None:
                continue
            reward = unpack_reward(packed)
            self._count(reward)
            job.num_calls = reward.attempts
            job.started_s = job.queued_s + waited_s
            if needs_groups and not job.group.is_whole:
                self._keep_for_group(serial, job)
            job.resolve((reward,))
            self._forget_if_over(job.group.ticket)

    def refuse(self, serial: int, reason: str) -> None:
        """Fails a job that the host does not take."""
        if (job := self._take_out(serial)) is not None:
            job.fail("user_error", reason, self._loop.time())
            self._forget_if_over(job.group.ticket)

    def _count(self, reward: Reward) -> None:
        if not reward.cached:  # an earlier session made and counted the calls of a cached verdict
            self._calls += reward.attempts
            self._retries += max(0, reward.attempts - 1)
        self._cost_usd += reward.cost_usd
        self._tokens += reward.tokens

    def is_wanted(self, serial: int) -> bool:
        """Whether this rollout must still be sent, because it was not cancelled before."""
        return serial in self._jobs or serial in self._kept_for_groups

    def _keep_for_group(self, serial: int, job: Job) -> None:
        self._kept_for_groups[serial] = job
        if len(self._kept_for_groups) > _MAX_KEPT:
            del self._kept_for_groups[next(iter(self._kept_for_groups))]

    # -- after a reconnect -------------------------------------------------------------------------------------------

    def send_again(self) -> None:
        """Replaces what is queued by what a host that has restarted must know, which verdicts are wanted first.

        Jobs that are kept for their groups get new numbers: a host that did not restart would ignore the settled ones.
        """
        wanted = StillWanted(list(self._jobs), self._last)
        first = self._last + 1
        self._last += len(self._kept_for_groups)
        self._kept_for_groups = dict(enumerate(self._kept_for_groups.values(), start=first))
        numbered = [NumberedJob(*one) for jobs in (self._jobs, self._kept_for_groups) for one in jobs.items()]
        seals = [Seal(number) for ticket, number in self._tickets.items() if ticket.is_sealed]
        self._sender.start_over([wanted, *numbered, *seals])

    def statistics(self, verdicts: AssemblyStatistics) -> ClientStatistics:
        return ClientStatistics(
            verdicts=verdicts,
            out=len(self._jobs),
            calls=self._calls,
            retries=self._retries,
            cost_usd=self._cost_usd,
            tokens=self._tokens,
            reconnects=self._connection.num_reconnects,
        )


class _Sender:
    """A queue of messages to the host. Each is a task of the client's group; `run` starts them, `stop` ends them."""

    def __init__(
        self, connection: Connection, tasks: asyncio.TaskGroup, calls: RemoteCalls, *, sends_tokens: bool
    ) -> None:
        self._connection = connection
        self._tasks = tasks
        self._calls = calls
        self._sends_tokens = sends_tokens
        self._waiting: deque[Op | NumberedJob] = deque()
        self._has_waiting = asyncio.Event()
        self._messages_out: set[asyncio.Task[None]] = set()
        self._message_arrived = asyncio.Event()

    def put(self, items: Iterable[Op | NumberedJob]) -> None:
        self._waiting.extend(items)
        self._has_waiting.set()

    def start_over(self, items: Iterable[Op | NumberedJob]) -> None:
        """Replaces all queued items by these."""
        self._waiting.clear()
        self.put(items)

    async def run(self) -> None:
        while True:
            await self._has_waiting.wait()
            await self._connection.wait_until_up()
            ops = self._next_rollouts() or self._next_others()
            if not ops:
                self._has_waiting.clear()
                continue
            is_free = all(isinstance(op, Submit | ScoreRequest) for op in ops)
            await self._wait_for_messages_out(fewer_than=_MESSAGES_OUT if is_free else 1)
            message = self._tasks.create_task(self._send(ops, self._connection.num_reconnects))
            self._messages_out.add(message)
            message.add_done_callback(self._arrived)
            if not is_free:
                await self._wait_for_messages_out(fewer_than=1)

    async def _send(self, ops: Sequence[Op], epoch: int) -> None:
        try:
            await self._connection.post(ops, epoch=epoch, without_cancelled=self._without_cancelled)
        except MessageRefused as refusal:
            asked = [(op, one) for op in ops if isinstance(op, Submit | ScoreRequest) for one in op.rollouts]
            if len(asked) == 1:
                ((serial, _),) = (one for _, one in asked)
                self._calls.refuse(serial, str(refusal))
                return
            for half in (asked[: len(asked) // 2], asked[len(asked) // 2 :]):
                if half:
                    await self._send([replace(op, rollouts=[one]) for op, one in half], epoch)

    def stop(self) -> None:
        self._waiting.clear()
        for message in tuple(self._messages_out):
            message.cancel()

    async def _wait_for_messages_out(self, *, fewer_than: int) -> None:
        while len(self._messages_out) >= fewer_than:
            self._message_arrived.clear()
            await self._message_arrived.wait()

    def _arrived(self, message: asyncio.Task[None]) -> None:
        self._messages_out.discard(message)
        self._message_arrived.set()

    def _next_rollouts(self) -> Sequence[Op]:
        """Takes rollouts from the front of the queue, up to one message, grouped by ticket."""
        by_ticket: dict[Ticket, list[tuple[int, Packed]]] = {}
        alone: list[tuple[int, Packed]] = []
        room, room_bytes = _ROLLOUTS_A_MESSAGE, _BYTES_A_MESSAGE
        while room and room_bytes > 0 and self._waiting and isinstance(one := self._waiting[0], NumberedJob):
            self._waiting.popleft()
            if self._calls.is_wanted(one.serial):
                ticket, (rollout,) = one.job.group.ticket, one.job.rollouts
                has_number = self._calls.number_of(ticket) is not None
                rollouts = by_ticket.setdefault(ticket, []) if has_number else alone
                rollouts.append((one.serial, pack_rollout(rollout, with_tokens=self._sends_tokens)))
                room -= 1
                room_bytes -= text_size(rollout)
        submits: list[Op] = [
            Submit(number, rollouts, ticket.due_step, ticket.source)
            for ticket, rollouts in by_ticket.items()
            if (number := self._calls.number_of(ticket)) is not None
        ]
        return [*submits, ScoreRequest(alone)] if alone else submits

    def _without_cancelled(self, ops: Sequence[Op]) -> Sequence[Op]:
        kept: list[Op] = []
        for op in ops:
            if isinstance(op, Submit | ScoreRequest):
                wanted = [one for one in op.rollouts if self._calls.is_wanted(one[0])]
                kept += [replace(op, rollouts=wanted)] if wanted else []
            else:
                kept.append(op)
        return kept

    def _next_others(self) -> Sequence[Op]:
        """Takes all requests in front of the next rollout; they must be sent in order."""
        others: list[Op] = []
        while self._waiting and not isinstance(op := self._waiting[0], NumberedJob):
            others.append(op)
            self._waiting.popleft()
        return others
