"""The client of a shared agent: the same agent as `RewardAgent`, whose calls a host makes.

Always true: every submitted rollout gets one verdict, once, whatever happens to the host: `RemoteCalls` keeps rollouts
without a verdict and sends them again after a restart of the host. A delivered group holds the same rollout objects
that were submitted. The client asks for the next delivery only after it has handled the last one. A client that
records its run gets the run's events, between its opening and its closing event. It closes in bounded time, and cancels
what has no verdict, first here, then at the host.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from types import TracebackType
from typing import ClassVar, Self

from rewardflow import errors
from rewardflow.errors import AgentClosed, AgentHalted, InvalidInput
from rewardflow.observe.events import REWARD_SOURCE, AgentEnded, AgentOpened, EventSink
from rewardflow.reward.code.contract import load_reward
from rewardflow.reward.code.hooks import Hooks
from rewardflow.reward.code.scorer import Scorer
from rewardflow.reward.code.source import RewardSource
from rewardflow.reward.component import Component
from rewardflow.reward.event_loop import AgentLoop, end_tasks
from rewardflow.reward.groups.assembly import Assembly
from rewardflow.reward.recorder import Recorder, SinkOnly, StepRecorder
from rewardflow.reward.settings import AgentSettings
from rewardflow.reward.ticket import Ticket
from rewardflow.reward.ticket_agent import TicketAgent
from rewardflow.shared_agent.connection import NOT_OPEN, Connection, Transport
from rewardflow.shared_agent.deliveries import Inbox
from rewardflow.shared_agent.messages import AskStatistics, Delivery, HostStatistics, Welcome, check_travels
from rewardflow.shared_agent.remote_calls import ClientStatistics, RemoteCalls
from rewardflow.types import UNDECIDED_KINDS, Reward, Rollout

logger = logging.getLogger(__name__)


class SharedAgent(TicketAgent):
    """`async with connect(spec, run="job-1") as agent:`, then as with a `RewardAgent`."""

    _NOT_OPEN: ClassVar[str] = NOT_OPEN

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
        super().__init__(run=run, share=share)
        self.run = run
        self.share = share
        self._transport = transport
        self._sends_tokens = sends_tokens
        self._run_dir = run_dir
        self._sink = sink
        self._inbox: Inbox | None = None
        records = run_dir is not None or sink is not None
        self._connection = Connection(transport, run=run, share=share, records=records, give_up_s=give_up_s)

    # -- lifetime ----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._agent_loop is not None:
            raise AgentClosed("a SharedAgent can be entered once; connect again")
        self._agent_loop = AgentLoop()
        self._resources.push_async_callback(self._transport.aclose)
        try:
            self._recorder = self._open_recorder()
            self._begin(await self._connection.open())
        except BaseException:
            await self._resources.aclose()
            raise
        await self._tasks.__aenter__()
        self._io = (self._tasks.create_task(self._calls.run()), self._tasks.create_task(self._read_deliveries()))
        self._is_open = True
        return self

    def _open_recorder(self) -> StepRecorder | None:
        recorder: StepRecorder | None = None if self._sink is None else SinkOnly(self._sink)
        if self._run_dir is not None:
            own = recorder = Recorder(self._run_dir, asyncio.get_running_loop())
            self._resources.push_async_callback(own.aclose)
        self._inbox = None if recorder is None else Inbox(recorder)
        return recorder

    def _begin(self, welcome: Welcome) -> None:
        """Makes the parts of an agent with one reward, whose calls are made at the host."""
        self._calls = RemoteCalls(self._connection, self._tasks, sends_tokens=self._sends_tokens)
        scorer = Scorer(welcome.name, load_reward(RewardSource.of(_judged_at_the_host)), None)
        self._assembly = Assembly(
            [Component(welcome.name, 1.0, scorer, self._calls)],
            AgentSettings(run=self.run),
            journal=None,
            recorder=self._recorder,
            hooks=Hooks(timeout_s=None),
            tasks=self._tasks,
        )
        self._alone = super()._new_ticket(is_sealed=False)  # of rollouts that `score` sends one by one
        if self._recorder is not None:
            now_s, unix_s = asyncio.get_running_loop().time(), time.time()
            self._recorder.emit(
                AgentOpened(at_s=now_s, unix_s=unix_s, rewards=[welcome.name], settings=welcome.settings)
            )

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Cancels everything without a verdict, here and at the host, in bounded time."""
        if self._agent_loop is not None:
            self._agent_loop.check_is_running()
        self._is_open = False
        for task in self._io:
            task.cancel()
        self._calls.stop()
        try:
            await end_tasks(self._tasks, exc)
        finally:
            self.assembly.close()
            self.assembly.abandon()
            await self._leave()
            await self._resources.aclose()

    async def _leave(self) -> None:
        """Says goodbye to the host, and ends the run's record."""
        last = await self._connection.bye()
        if self._inbox is not None and last is not None:
            self._inbox.received(last)
        if self._recorder is not None:
            statistics = dataclasses.asdict(self.statistics())
            self._recorder.emit(AgentEnded(at_s=asyncio.get_running_loop().time(), statistics=statistics))

    # -- deliveries --------------------------------------------------------------------------------------------------

    async def _read_deliveries(self) -> None:
        """Hands deliveries on until the host has halted or is gone for good."""
        while self.assembly.halted is None:
            try:
                delivery = await self._connection.take()
                if delivery is None:
                    await self._reconnect()
                else:
                    self._received(delivery)
            except AgentHalted as gone:
                self._calls.stop()
                self.assembly.halt(gone)

    def _received(self, delivery: Delivery) -> None:
        if self._inbox is not None:
            self._inbox.received(delivery)
        if delivery.halt is None:
            self._settle(delivery)
            return
        self._calls.stop()
        error = getattr(errors, delivery.halt.error, AgentHalted)(delivery.halt.message)
        self.assembly.halt(error, resolve_ended=lambda: self._settle(delivery))

    def _settle(self, delivery: Delivery) -> None:
        self._calls.settle(delivery.verdicts, needs_groups=self.needs_groups)

    async def _reconnect(self) -> None:
        """Says hello until a host answers, then sends every rollout without a verdict again."""
        async with self._connection.renewed():
            if self._inbox is not None:
                self._inbox.reconnected()
            self._calls.send_again()
        num_sent = len(self._calls)
        logger.warning("connected to the shared agent again; sent %d rollouts without a verdict again", num_sent)

    # -- submitting --------------------------------------------------------------------------------------------------

    def submit(self, rollouts: Rollout | Iterable[Rollout], *, ticket: Ticket | None = None) -> Ticket:
        """Starts scoring and returns at once, as `RewardAgent.submit` does."""
        batch = [rollouts] if isinstance(rollouts, Rollout) else list(rollouts)
        for rollout in batch:
            check_travels(rollout, self._transport.problem_with)
        return super().submit(batch, ticket=ticket)

    async def score(self, rollout: Rollout) -> Reward:
        """Returns the verdict on one rollout: as soon as it is final, or, if it depends on its group, with the group's.

        Any worker of the run may submit the rest of the group. Cancelling the caller cancels the request.
        """
        check_travels(rollout, self._transport.problem_with)
        if not self._is_open or self._agent_loop is None:
            raise AgentClosed(NOT_OPEN)
        loop = asyncio.get_running_loop()
        if loop is not self._agent_loop.loop:
            raise InvalidInput("score must be awaited on the loop that the client was opened on")
        verdict: asyncio.Future[Reward] = loop.create_future()
        job = self.assembly.accept_alone(rollout, self._alone, contextvars.copy_context(), self._settling(verdict))
        try:
            return await verdict
        finally:
            if not job.is_done:
                job.fail("cancelled", "cancelled by the caller", loop.time())
                self._calls.withdraw(job)

    def _settling(self, verdict: asyncio.Future[Reward]) -> Callable[[Reward], None]:
        def settle(reward: Reward) -> None:
            if verdict.done():
                return
            halted = self.assembly.halted
            if halted is not None and reward.kind in UNDECIDED_KINDS:
                verdict.set_exception(halted)
            else:
                verdict.set_result(reward)

        return settle

    def _submit(self, batch: Sequence[Rollout], ticket: Ticket | None, context: contextvars.Context) -> Ticket:
        submitted = super()._submit(batch, ticket, context)
        if ticket is None:
            self._calls.register(submitted)
            self._calls.seal(submitted)
        return submitted

    def _new_ticket(self, *, is_sealed: bool, due_step: int | None = None, source: str = REWARD_SOURCE) -> Ticket:
        ticket = super()._new_ticket(is_sealed=is_sealed, due_step=due_step, source=source)
        if not is_sealed:
            self._calls.register(ticket)
        return ticket

    def cancel_started(self, ticket: Ticket) -> None:
        """Asks the host, which knows what has started."""
        self._calls.cancel_started(ticket)

    def sealed(self, ticket: Ticket) -> None:
        self._calls.seal(ticket)

    # -- state -------------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The name by which the host knows this client."""
        return self._connection.client_id

    @property
    def is_open(self) -> bool:
        return self._is_open and self.assembly.halted is None

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
        verdicts = self.assembly.statistics()
        return self._calls.statistics(verdicts)

    async def host_statistics(self) -> HostStatistics:
        """Returns the statistics of the agent that all runs share."""
        return await self._transport.ask(AskStatistics())


async def _judged_at_the_host(solution_str: str) -> float:
    raise AssertionError("the host calls the rewards, the client never does")
