"""The client of a shared agent, with the interface of `RewardAgent`.

Always true: every submitted rollout gets one verdict, once, whatever happens to the host. The client keeps rollouts
without a verdict, sends them again after a restart of the host, and ignores a verdict that comes a second time. A
delivered group holds the same rollout objects that were submitted. All rollouts submitted in one turn of the loop
travel in one message, and so do all verdicts that are ready together. A client that records its run gets the run's
events.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from types import TracebackType
from typing import Self, TypeVar

from rewardflow.errors import AgentClosed, AgentHalted, InvalidInput
from rewardflow.observe.events import REWARD_SOURCE, EventSink
from rewardflow.reward.recorder import Recorder
from rewardflow.reward.ticket import Ticket
from rewardflow.shared_agent.client_counts import ClientCounts, ClientStatistics
from rewardflow.shared_agent.connection import NOT_OPEN, Connection, Transport
from rewardflow.shared_agent.messages import Cancel, CancelStarted, HostStatistics, Seal, check_travels
from rewardflow.shared_agent.record import RunRecord
from rewardflow.shared_agent.session import Session
from rewardflow.shared_agent.waiting_rollouts import NO_TICKET
from rewardflow.types import Reward, Rollout

T = TypeVar("T")


class SharedAgent:
    """`async with connect(spec, run="job-1") as agent:`, then as with a `RewardAgent`."""

    def __init__(
        self,
        transport: Transport,
        *,
        run: str,
        share: float = 1.0,
        sends_tokens: bool = False,
        give_up_s: float = 600.0,
        run_dir: str | PathLike[str] | None = None,
        sink: EventSink | None = None,
    ) -> None:
        if run_dir is not None and sink is not None:
            raise InvalidInput("events must go to one place, got a run_dir and a sink")
        self.run = run
        self.share = share
        self._transport = transport
        self._sends_tokens = sends_tokens
        self._run_dir = run_dir
        self._sink = sink
        records = run_dir is not None or sink is not None
        self._connection = Connection(transport, run=run, share=share, records=records, give_up_s=give_up_s)
        self._counts = ClientCounts()
        self._resources = contextlib.AsyncExitStack()
        self._was_entered = False
        self._is_open = False
        self._session: Session | None = None

    # -- lifetime ----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._was_entered:
            raise AgentClosed("a SharedAgent can be entered once; connect again")
        self._was_entered = True
        self._resources.push_async_callback(self._transport.aclose)
        session = Session(self._connection, self._counts, self._open_record(), sends_tokens=self._sends_tokens)
        try:
            await session.begin()
        except BaseException:
            await self._resources.aclose()
            raise
        self._session = session
        self._is_open = True
        return self

    def _open_record(self) -> RunRecord | None:
        if self._run_dir is None:
            return None if self._sink is None else RunRecord(self._sink)
        recorder = Recorder(self._run_dir, asyncio.get_running_loop())
        self._resources.push_async_callback(recorder.aclose)
        return RunRecord(recorder, recorder.step_idle)

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Cancels everything without a verdict, here and at the host, in bounded time."""
        session = self._begun
        session.agent_loop.check_is_running()
        self._is_open = False
        try:
            await session.end(exc)
        finally:
            await self._resources.aclose()

    @property
    def _begun(self) -> Session:
        """The session; it exists from the host's first welcome on, also after closing."""
        if self._session is None:
            raise AgentClosed(NOT_OPEN)
        return self._session

    @property
    def _halted(self) -> AgentHalted | None:
        return None if self._session is None else self._session.client_tickets.halted

    def _check_open(self) -> Session:
        if self._halted is not None:
            raise type(self._halted)(str(self._halted))
        if not self._is_open:
            raise AgentClosed(NOT_OPEN)
        return self._begun

    # -- submitting --------------------------------------------------------------------------------------------------

    def submit(self, rollouts: Rollout | Iterable[Rollout], *, ticket: Ticket | None = None) -> Ticket:
        """Starts scoring and returns at once, as `RewardAgent.submit` does."""
        batch = [rollouts] if isinstance(rollouts, Rollout) else list(rollouts)
        for rollout in batch:
            check_travels(rollout, self._transport.problem_with)
        return self.on_loop(lambda: self._submit(batch, ticket))

    def open(self, *, due_step: int | None = None, source: str = REWARD_SOURCE) -> Ticket:
        """Returns a ticket to submit to while rollouts are generated, as `RewardAgent.open` does."""
        return self.on_loop(lambda: self._new_ticket(is_sealed=False, due_step=due_step, source=source))

    async def score(self, rollout: Rollout) -> Reward:
        """Returns the verdict on one rollout: as soon as it is final, or, if it depends on its group, with the group's.

        Any worker of the run may submit the rest of the group. Cancelling the caller cancels the request.
        """
        check_travels(rollout, self._transport.problem_with)
        session = self._check_open()
        if asyncio.get_running_loop() is not session.agent_loop.loop:
            raise InvalidInput("score must be awaited on the loop that the client was opened on")
        caller: asyncio.Future[Reward] = session.agent_loop.loop.create_future()
        self._counts.asked(1)
        waiting = session.waiting_rollouts.add(rollout, NO_TICKET, caller=caller)
        session.sender.put([waiting])
        try:
            return await caller
        finally:
            if session.waiting_rollouts.take_out(waiting.serial) is not None:
                session.sender.put([Cancel([waiting.serial])])

    def _submit(self, batch: Sequence[Rollout], ticket: Ticket | None) -> Ticket:
        session = self._check_open()
        is_new = ticket is None
        if ticket is None:
            ticket = self._new_ticket(is_sealed=True)
        else:
            ticket._check_takes_more()
        groups = session.client_tickets.join(batch, ticket)
        number = session.client_tickets.numbers[ticket]
        self._counts.asked(len(batch))
        add = session.waiting_rollouts.add
        session.sender.put([add(one, number, group=group) for one, group in zip(batch, groups, strict=True)])
        if is_new:
            self.sealed(ticket)
        return ticket

    def _new_ticket(self, *, is_sealed: bool, due_step: int | None = None, source: str = REWARD_SOURCE) -> Ticket:
        session = self._check_open()
        ticket = Ticket(
            self,
            session.agent_loop.loop,
            is_sealed=is_sealed,
            run=self.run,
            share=self.share,
            due_step=due_step,
            source=source,
        )
        session.client_tickets.add(ticket)
        return ticket

    # -- for tickets -------------------------------------------------------------------------------------------------

    def on_loop(self, action: Callable[[], T]) -> T:
        """Runs a short action on the client's loop; may be called from any thread."""
        session = self._begun if self._is_open else self._check_open()
        return session.agent_loop.run(action)

    def cancel(self, ticket: Ticket, group_ids: set[str] | None) -> None:
        """Cancels here at once, and asks the host to stop its calls."""
        session = self._begun
        serials = session.verdicts.cancel(set(ticket._groups(group_ids)))
        if serials:
            session.sender.put([Cancel(serials)])

    def cancel_started(self, ticket: Ticket) -> None:
        session = self._begun
        number = session.client_tickets.numbers.get(ticket)
        if number is not None:
            session.sender.put([CancelStarted(number)])

    def sealed(self, ticket: Ticket) -> None:
        session = self._begun
        number = session.client_tickets.numbers.get(ticket)
        if number is not None:
            session.sender.put([Seal(number)])
            session.client_tickets.forget_if_over(ticket)

    # -- statistics --------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The name by which the host knows this client."""
        return self._connection.client_id

    @property
    def is_open(self) -> bool:
        return self._is_open and self._halted is None

    @property
    def name(self) -> str:
        return self._connection.welcome.name

    @property
    def num_rewards(self) -> int:
        """Always 1: the host combines several rewards, and a ticket's watcher is called once for each rollout."""
        return 1

    @property
    def may_change_verdicts(self) -> bool:
        """Always False: verdicts from the host are final."""
        return False

    @property
    def needs_groups(self) -> bool:
        """Whether a verdict may depend on the other rollouts of its group."""
        return self._connection.welcome.needs_groups

    @property
    def incomplete_after_s(self) -> float | None:
        return self._connection.welcome.incomplete_after_s

    def statistics(self) -> ClientStatistics:
        return self._counts.statistics(out=0, reconnects=0) if self._session is None else self._session.statistics()

    async def host_statistics(self) -> HostStatistics:
        """Returns the statistics of the agent that all runs share."""
        return await self._transport.statistics()
