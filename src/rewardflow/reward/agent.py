"""The reward agent: scores rollouts with the user's scoring function.

Always true: every submitted rollout gets exactly one verdict, once; leaving the agent's block ends every call it
made, in bounded time. Its parts: an `Assembly` turns rollouts into jobs and verdicts into groups; a `Dispatcher` for
each service account starts the calls; `Governors` decide when a call may start; a `Scorer` runs the user's code; a
`Journal` stores every paid verdict.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from rewardflow.clock import hold
from rewardflow.errors import AgentClosed, InvalidInput, JournalWriteFailed
from rewardflow.observe.events import REWARD_SOURCE, AccountLoad, AgentEnded, AgentOpened, EventRelay, EventSink
from rewardflow.observe.redact import address_to_show
from rewardflow.reward.agent_statistics import AgentStatistics
from rewardflow.reward.calls.dispatcher import Dispatcher
from rewardflow.reward.code.hooks import Hooks
from rewardflow.reward.code.reward_forms import RewardLike
from rewardflow.reward.code.reward_tasks import guarded_tasks
from rewardflow.reward.code.scorer import Scorer
from rewardflow.reward.code.source import RewardSource
from rewardflow.reward.component import Component, Weighted, as_parts, part_name
from rewardflow.reward.event_loop import AgentLoop, end_tasks
from rewardflow.reward.forwarding_ticket import ForwardingTicket, VerdictReceiver
from rewardflow.reward.gc_tuning import fewer_collections
from rewardflow.reward.groups.assembly import Assembly
from rewardflow.reward.groups.local_decision import LocalDecider
from rewardflow.reward.journal.verdict_journal import Journal
from rewardflow.reward.limits.ledger import Ledger
from rewardflow.reward.limits.run_ledgers import RunLedgers
from rewardflow.reward.open_rewards import OpenRewards
from rewardflow.reward.option_help import with_options_in_help
from rewardflow.reward.progress import screen_here, shown_progress
from rewardflow.reward.recorder import Recorder
from rewardflow.reward.settings import AgentOptions, split_options
from rewardflow.reward.ticket_agent import TicketAgent
from rewardflow.types import EMPTY

if TYPE_CHECKING:
    from typing import Unpack

    from rewardflow.reward.batch_function import BatchFunction

T = TypeVar("T")

REWARD_FILE_SUFFIXES = (".yaml", ".yml")


class RewardAgent(TicketAgent):
    """Scores rollouts with one reward, or with a weighted sum of several.

    async with RewardAgent("judge.py:Judge", max_concurrency=256, timeout_s=60) as agent:
        async for group in agent.submit(rollouts):
            ...
    """

    @with_options_in_help
    def __init__(
        self,
        reward: RewardLike | Weighted | Sequence[Weighted],
        *,
        reward_kwargs: Mapping[str, Any] = EMPTY,
        serves_runs: bool = False,
        run_ledgers: RunLedgers | None = None,
        **options: Unpack[AgentOptions],
    ) -> None:
        """`reward` and `reward_kwargs` are as in `score`; entering the agent opens it.

        `serves_runs`: each ticket names its run, and the cost of all runs counts against `max_cost_usd`. `run_ledgers`
        counts what each run costs, and keeps runs below their own caps.
        """
        if isinstance(reward, str) and reward.endswith(REWARD_FILE_SUFFIXES):
            reward, options = _from_file(reward, reward_kwargs, options)
        self.settings, self._limits = split_options(options)
        super().__init__(run=self.settings.run)
        self._run_ledgers = run_ledgers
        self._serves_runs = serves_runs
        self._parts = as_parts(reward, reward_kwargs)
        self._rewards = OpenRewards(
            self._parts, self.settings, self._limits, given=frozenset(options), run_ledgers=run_ledgers
        )
        self._components: list[Component] = []
        self._dispatchers: dict[str, Dispatcher] = {}
        self._journal: Journal | None = None
        self._recorder: Recorder | None = None
        self._account_events = EventRelay()
        self._hooks = Hooks(timeout_s=self._limits.timeout_s)

    def __repr__(self) -> str:
        return f"RewardAgent({self.name}, {self._state()})"

    def _state(self) -> str:
        if self._agent_loop is None:
            return "not opened yet"
        if not self._is_open or self._assembly is None:
            return "closed"
        statistics = self.statistics()
        verdicts, spent_usd = statistics.verdicts, statistics.ledger.spent_usd
        done = f"{verdicts.scored + sum(verdicts.failed.values()):,} of {verdicts.submitted:,} judged"
        cost = f", cost ${spent_usd:.4g}" if spent_usd else ""
        return f"open: {done}, {statistics.in_flight:,} in flight, {statistics.waiting:,} waiting{cost}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles rewards and settings: a copy is not open, and finds files from any working directory."""
        parts = [dataclasses.replace(part, reward=RewardSource.of(part.reward).spec) for part in self._parts]
        options = {
            one.name: getattr(record, one.name)
            for record in (self.settings, self._limits)
            for one in dataclasses.fields(record)
        }
        for name in ("journal", "run_dir"):
            options[name] = None if options[name] is None else Path(options[name]).absolute()
        return _remake, (parts, self._serves_runs, options)

    # -- lifetime ----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._agent_loop is not None:
            raise AgentClosed("a RewardAgent can be entered once; make a new one")
        self._agent_loop = AgentLoop()
        try:
            await self._open(self._agent_loop.loop)
        except BaseException:
            await self._resources.aclose()
            raise
        self._is_open = True
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Ends the calls in flight, saves paid verdicts, and releases everything, in bounded time."""
        if self._agent_loop is not None:
            self._agent_loop.check_is_running()
        self._is_open = False
        self.assembly.close()
        for dispatcher in self._dispatchers.values():
            dispatcher.stop()
        expiry = asyncio.get_running_loop().call_later(self.settings.close_timeout_s, self._hooks.expire)
        try:
            await end_tasks(self._tasks, exc)
        except asyncio.CancelledError as cancelled:
            self._raise_if_reward_cancelled(cancelled)
            raise
        finally:
            expiry.cancel()
            for dispatcher in self._dispatchers.values():
                dispatcher.finish()
            try:
                await self._resources.aclose()
            except JournalWriteFailed:
                if not isinstance(exc, JournalWriteFailed):  # otherwise the caller has it already, with the verdicts
                    raise

    def _raise_if_reward_cancelled(self, cancelled: asyncio.CancelledError) -> None:
        """Raises `AgentClosed` if a reward, not the caller, cancelled the task that opened the agent."""
        for dispatcher in self._dispatchers.values():
            if dispatcher.tasks_cancelled_by is not None:
                raise AgentClosed(
                    f"the agent was closed because reward {dispatcher.tasks_cancelled_by} cancelled tasks that it did "
                    "not start; reward code may cancel only its own tasks"
                ) from cancelled

    async def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Opens all parts, and so finds every mistake in the settings before the first call.

        The stack closes the parts in reverse order.
        """
        settings, stack = self.settings, self._resources
        stack.enter_context(fewer_collections(self._rewards.most_calls))
        stack.enter_context(guarded_tasks(loop))
        if settings.run_dir is not None:
            self._recorder = Recorder(settings.run_dir, loop, loads=self._account_loads)
            stack.push_async_callback(self._recorder.aclose)
            self._account_events.add(self._recorder)
        stack.push_async_callback(self._hooks.aclose, settings.close_timeout_s)
        await self._rewards.load(stack, self._hooks)
        stack.callback(self._release_waiters)
        if settings.journal is not None:
            with hold(loop):  # waiting for a locked file may take seconds
                self._journal = await asyncio.to_thread(
                    Journal,
                    settings.journal,
                    run=None if self._serves_runs else settings.run,
                    store=settings.store,
                    has_cap=settings.max_cost_usd is not None
                    or (self._run_ledgers is not None and self._run_ledgers.has_caps),
                )
            self._journal.start(loop, failed=lambda error: self.assembly.halt(error))
            await self._rewards.resume_requests(self._journal)
            stack.push_async_callback(self._close_journal, self._journal)
        self._ledger = self._make_ledger()
        if self._run_ledgers is not None and self._journal is not None:
            self._run_ledgers.open(self._journal)
        if self._journal is not None:
            stack.push_async_callback(self._save_ledger, self._journal)
        await self._tasks.__aenter__()
        self._connect(loop)
        if self._run_ledgers is not None and self._journal is not None:
            self._run_ledgers.keep_in(self._journal, self._dispatchers)
        self._assembly = Assembly(
            self._components,
            settings,
            journal=self._journal,
            recorder=self._recorder,
            hooks=self._hooks,
            tasks=self._tasks,
        )
        if self._recorder is not None:
            names = [component.name for component in self._components]
            self._recorder.emit(
                AgentOpened(at_s=loop.time(), unix_s=time.time(), rewards=names, settings=self.shown_settings())
            )

    def _make_ledger(self) -> Ledger:
        cap_usd, call_cost_usd, journal = self.settings.max_cost_usd, self.settings.call_cost_usd, self._journal
        if journal is None:
            return Ledger(cap_usd=cap_usd, call_cost_usd=call_cost_usd)
        if cap_usd is not None:
            journal.require_known_money()
        return Ledger(
            cap_usd=cap_usd,
            call_cost_usd=call_cost_usd,
            already_spent_usd=journal.spent_usd(),
            already_uncertain_usd=journal.stored_money.uncertain_usd,
            before=journal.stored_money.before,
            reserve=journal.reserve,
            on_change=self._wake_all,
        )

    async def _close_journal(self, journal: Journal) -> None:
        await journal.aclose(self.settings.close_timeout_s)  # raises if a verdict is not on disk
        self._rewards.all_saved()

    async def _save_ledger(self, journal: Journal) -> None:
        """Writes down what the saved verdicts do not show, in place of the reservations, after the last verdict."""
        loop = asyncio.get_running_loop()
        is_last_saved: asyncio.Future[None] = loop.create_future()
        journal.reserve((), lambda _: None if is_last_saved.done() else is_last_saved.set_result(None))
        with contextlib.suppress(TimeoutError):  # a journal that hangs keeps the reservations, which are enough
            async with asyncio.timeout(self.settings.close_timeout_s):
                await is_last_saved
            rows = self._ledger.closing_reservations()
            if rows:
                journal.reserve(rows, lambda _: None)
            if self._run_ledgers is not None:
                self._run_ledgers.close(journal)

    def _connect(self, loop: asyncio.AbstractEventLoop) -> None:
        """Gives each reward the dispatcher of its account."""
        for part, scorer in zip(self._parts, self._rewards.scorers, strict=True):
            account = part.account or scorer.name
            limits = self._rewards.limits_of(part, scorer.loaded)
            if not limits.endpoints and scorer.loaded.endpoints:
                limits = dataclasses.replace(limits, endpoints=scorer.loaded.endpoints)
            dispatcher = self._dispatchers.get(account)
            if dispatcher is None:
                dispatcher = self._dispatchers[account] = Dispatcher(
                    account,
                    limits,
                    ledger=self._ledger,
                    tasks=self._tasks,
                    sink=self._account_events if self._serves_runs or self._recorder is not None else None,
                    halt=lambda error: self.assembly.halt(error),
                    settled=self._wake_all if self.settings.max_cost_usd is not None else None,
                    run_ledgers=self._run_ledgers,
                )
            elif dispatcher.limits != limits:
                raise InvalidInput(
                    f"rewards of one account must have the same limits, got different ones for {account!r}"
                )
            scorer.start(loop, dispatcher.wake)
            decider = self._decider_of(scorer, dispatcher)
            self._components.append(Component(scorer.name, part.weight, scorer, dispatcher, decider))

    def _decider_of(self, scorer: Scorer, dispatcher: Dispatcher) -> LocalDecider | None:
        loaded = scorer.loaded
        if loaded.decide_locally is None:
            return None
        decider = LocalDecider(
            scorer.name,
            loaded.decide_locally,
            is_quick=loaded.decides_quickly,
            limits=dispatcher.limits,
            tasks=self._tasks,
            left_open=dispatcher.add,
        )
        self._resources.push_async_callback(decider.aclose, self.settings.close_timeout_s)
        return decider

    def _wake_all(self) -> None:
        for dispatcher in self._dispatchers.values():
            dispatcher.wake()

    def _release_waiters(self) -> None:
        """Ends every wait, after the journal has closed."""
        if self._assembly is None or self._agent_loop is None:
            return
        self._assembly.abandon()
        if self._recorder is not None:
            statistics = dataclasses.asdict(self.statistics())
            self._recorder.emit(AgentEnded(at_s=self._agent_loop.loop.time(), statistics=statistics))

    def _account_loads(self) -> list[AccountLoad]:
        accounts = [dispatcher.statistics() for dispatcher in self._dispatchers.values()]
        return [
            AccountLoad(
                at_s=asyncio.get_running_loop().time(),
                account=account.account,
                in_flight=account.in_flight,
                waiting=account.waiting,
                limit=account.governors.concurrency.limit,
                rpm=account.governors.pace.rpm,
                broken=sum(endpoint.breaker.state != "closed" for endpoint in account.governors.endpoints),
            )
            for account in accounts
        ]

    def shown_settings(self) -> dict[str, Any]:
        """Returns the settings without secrets: omits `reward_kwargs`, which may hold keys, and redacts endpoints."""
        shown = dataclasses.asdict(self.settings) | dataclasses.asdict(self._limits)
        for name in ("journal", "run_dir"):
            shown[name] = None if shown[name] is None else str(shown[name])
        shown["endpoints"] = [address_to_show(name) for name in self._limits.endpoints]
        return shown

    # -- for agents of several runs ----------------------------------------------------------------------------------

    def open_forwarding_ticket(
        self,
        receiver: VerdictReceiver,
        *,
        run: str,
        share: float = 1.0,
        due_step: int | None = None,
        source: str = REWARD_SOURCE,
    ) -> ForwardingTicket:
        """Returns a ticket that passes each verdict to the receiver as soon as it is final; for agents of many runs."""
        assert self._agent_loop is not None
        ticket = ForwardingTicket(
            self,
            self._agent_loop.loop,
            receiver,
            self._components,
            run=run,
            share=share,
            due_step=due_step,
            source=source,
        )
        self.assembly.register(ticket)
        return ticket

    def add_account_sink(self, sink: EventSink) -> None:
        """Adds a sink for changes of limits, breakers and outages; for an agent that serves several runs."""
        self._account_events.add(sink)

    def as_batch_function(
        self, *, group_size: int = 1, failed: float | None = None, server: str | None = None
    ) -> BatchFunction:
        """Returns a plain function over lists, for TRL's `reward_funcs` and notebooks. See `BatchFunction`."""
        from rewardflow.reward.batch_function import BatchFunction

        return BatchFunction(self, group_size=group_size, failed=failed, server=server)

    @property
    def name(self) -> str:
        return "+".join(part_name(part) for part in self._parts)

    @property
    def incomplete_after_s(self) -> float | None:
        return self.settings.incomplete_after_s

    @property
    def num_rewards(self) -> int:
        """The number of rewards that each verdict combines."""
        return len(self._parts)

    @property
    def may_change_verdicts(self) -> bool:
        """Whether a reward sees a whole group's scores before they are final (`post_process_scores`)."""
        return any(component.scorer.loaded.post_process is not None for component in self._components)

    @property
    def units(self) -> tuple[str, ...]:
        """What each reward judges at a time, `rollout` or `group`; empty before the agent is entered."""
        return tuple(component.scorer.loaded.unit for component in self._components)

    @property
    def knows_prices(self) -> bool:
        """Whether every reward knows what its calls cost, so that a cost of 0 means that they are free."""
        hooks = [component.scorer.loaded.price_problem for component in self._components]
        return all(hook is not None and hook() is None for hook in hooks)

    @property
    def needs_groups(self) -> bool:
        """Whether a verdict may depend on the other rollouts of its group."""
        return self.may_change_verdicts or any(one.scorer.loaded.unit == "group" for one in self._components)

    def progress(self, *, total: int | None = None) -> AbstractAsyncContextManager[None]:
        """Shows a line that changes while the block of `async with agent.progress():` runs, where somebody looks.

        `total` is the number of rollouts, if more will be submitted than have been so far.
        """
        return shown_progress(self, total=total, screen=screen_here())

    # -- statistics --------------------------------------------------------------------------------------------------

    def statistics(self) -> AgentStatistics:
        workers = {
            component.name: component.scorer.workers.statistics()
            for component in self._components
            if component.scorer.workers is not None
        }
        return AgentStatistics(
            verdicts=self.assembly.statistics(),
            ledger=self._ledger.statistics(),
            accounts=tuple(dispatcher.statistics() for dispatcher in self._dispatchers.values()),
            deciders={one.name: one.decider.statistics() for one in self._components if one.decider is not None},
            workers=workers,
            journal=None if self._journal is None else self._journal.statistics(),
            events=None if self._recorder is None else self._recorder.statistics(),
        )


def _from_file(
    path: str, reward_kwargs: Mapping[str, Any], options: AgentOptions
) -> tuple[Sequence[Weighted], AgentOptions]:
    """Loads a reward file; options of the caller override those of the file.

    Services lie above the agent, which knows them by name alone and imports them only here.
    """
    if reward_kwargs:
        raise InvalidInput(f"the settings of a reward file stand in the file, got reward_kwargs beside {path}")
    loaded = importlib.import_module("rewardflow.services.reward_file").load_reward_file(path)
    return loaded.parts, cast("AgentOptions", {**loaded.options, **options})


def _remake(parts: list[Weighted], serves_runs: bool, options: AgentOptions) -> RewardAgent:
    return RewardAgent(parts, serves_runs=serves_runs, **options)
