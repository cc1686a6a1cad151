"""Starts the calls of one service account when its governors allow it, and brings each job to its one outcome.

Always true: within a run the oldest step goes first and, within it, groups one after another; runs that share the
account get their shares of it (`fair_queue.py`); no call starts above the limit; a call that ends frees its slot, by a
result or an error.

A runner makes calls in one slot, one after another, until `admission` says "not now". `attempt_life` starts and ends
each, `failed_calls` decides about retries, and `giving_up` when to stop trying.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections.abc import Callable

from rewardflow.errors import AgentHalted
from rewardflow.observe.events import EventSink
from rewardflow.reward.calls.account_parts import AccountParts
from rewardflow.reward.calls.admission import Admission
from rewardflow.reward.calls.attempt import Attempt
from rewardflow.reward.calls.attempt_life import AttemptLife
from rewardflow.reward.calls.call_records import DispatchStatistics
from rewardflow.reward.calls.failed_calls import FailedCalls
from rewardflow.reward.calls.fair_queue import QueueEntry
from rewardflow.reward.calls.giving_up import GivingUp
from rewardflow.reward.groups.job import Job
from rewardflow.reward.limits.ledger import Ledger
from rewardflow.reward.limits.run_ledgers import RunLedgers
from rewardflow.reward.settings import LimitSettings

_STARTS_PER_TURN = 256  # so that filling 20,000 slots does not freeze the loop
_CALLS_PER_TURN = 64  # a runner whose calls never wait yields to the loop after this many


class Dispatcher:
    """The queue and the runners of one service account."""

    def __init__(
        self,
        account: str,
        limits: LimitSettings,
        *,
        ledger: Ledger,
        tasks: asyncio.TaskGroup,
        sink: EventSink | None,
        halt: Callable[[AgentHalted], None],
        settled: Callable[[], None] | None,
        run_ledgers: RunLedgers | None = None,
    ) -> None:
        """`sink` gets the changes of the account; the sink of a call's ticket gets the call."""
        self.account = account
        self.limits = limits
        self._parts = parts = AccountParts.make(account, limits, ledger, sink, run_ledgers)
        self._ledger = ledger
        self._tasks = tasks
        self._loop = parts.loop
        self._context = contextvars.copy_context()  # for runners: independent of who submitted the rollouts
        self._governors = parts.governors
        self._blame = parts.blame
        self._queue = parts.queue
        self._sequence = 0
        self._running = 0
        self._num_unsaved = 0
        self._pump_handle: asyncio.Handle | None = None
        self._handed_over: set[Attempt] = set()
        self._is_stopped = False
        self._giving_up = GivingUp(parts, halt)
        self._outage = self._giving_up.outage
        self._failed_calls = FailedCalls(parts, self._giving_up, add=self.add, wake=self.wake)
        self._admission = Admission(parts, self._giving_up, add=self.add, woken=self._pump)
        self._attempts = AttemptLife(
            parts,
            self._giving_up,
            self._failed_calls,
            settled=settled,
            add=self.add,
            queue_hedge=self._queue_hedge,
            wake=self.wake,
        )

    @property
    def tasks_cancelled_by(self) -> str | None:
        """The reward whose code cancelled its caller's task."""
        return self._attempts.tasks_cancelled_by

    def add(self, job: Job, *, is_hedge: bool = False) -> None:
        """Queues a job by age: the step it is due with, then group by its position, then index."""
        first = job.rollouts[0]
        if not job.queued_s:
            job.queued_s = self._loop.time()
        self._sequence += 1
        group = job.group
        place = (group.due_step, group.position, group.number, first.index)
        self._queue.push(QueueEntry(*place, self._sequence, job, is_hedge))
        self.wake()

    def _queue_hedge(self, job: Job) -> None:
        self.add(job, is_hedge=True)

    def wake(self) -> None:
        """Schedules a check whether calls may start, because something changed."""
        if self._pump_handle is None and not self._is_stopped:
            self._pump_handle = self._loop.call_soon(self._pump)

    def stop(self) -> None:
        """Starts no more calls; a call in flight ends through its job."""
        self._is_stopped = True
        self._admission.stop()
        if self._pump_handle is not None:
            self._pump_handle.cancel()
        self._outage.stop()
        self._queue.clear()

    def drain(self) -> None:
        """Starts no more calls, also no retries; calls in flight go on to their end."""
        self._admission.is_open = False
        self._failed_calls.may_retry = False

    def saving(self) -> None:
        """Keeps a verdict's slot taken until it is on disk, so that a crash never loses more than the limit."""
        self._num_unsaved += 1

    def saved(self, job: Job, cost_usd: float) -> None:
        """Frees the slot of a verdict; `cost_usd` is the part of its cost that is on disk now."""
        self._num_unsaved -= 1
        if cost_usd:
            self._ledger.saved(self.account, cost_usd)
            if (run_ledgers := self._parts.run_ledgers) is not None:
                run_ledgers.saved(job.group.ticket.run, self.account, cost_usd)
        self.wake()

    def finish(self) -> None:
        """Ends attempts whose runner was cancelled before its first step; called after the last runner ended."""
        for attempt in self._handed_over:
            self._running -= 1
            self._attempts.end(attempt, None, None, self._running)
        self._handed_over.clear()

    def prune(self) -> None:
        """Drops jobs that were cancelled in the queue."""
        self._queue.prune()
        if self._outage.is_running and not self._giving_up.is_anyone_waiting():
            self._outage.end()

    def _pump(self) -> None:
        """Fills free slots with runners."""
        self._pump_handle = None
        for _ in range(_STARTS_PER_TURN):
            if self._running + self._num_unsaved >= self._governors.limit:
                return
            self._running += 1
            attempt = self._take_nowait()
            if attempt is None:
                self._running -= 1
                return
            self._handed_over.add(attempt)
            self._tasks.create_task(self._run(attempt), context=self._context)
        self.wake()

    async def _run(self, first: Attempt) -> None:
        """Makes calls one after another in one slot until none may start.

        This is the one boundary round a reward's own code: its exceptions become data here. The answer is awaited here
        and not in a separate coroutine, because each call in flight would need one.
        """
        num_calls, attempts = 0, self._attempts
        task = asyncio.current_task()
        assert task is not None
        attempt: Attempt | None = first
        self._handed_over.discard(first)
        try:
            while attempt is not None:
                rewards, fault = None, None
                attempt.task = task
                try:
                    is_done, answer = attempts.begin(attempt)
                    if not is_done:  # an immediate answer needs no time limit
                        with attempt:
                            attempt.job.hold(attempt)
                            answer = await answer
                    rewards = attempts.parse(attempt, answer)
                except asyncio.CancelledError as error:
                    if self._is_stopped:
                        attempts.end(attempt, None, None, self._running)
                        raise
                    fault = attempts.cancelled_by_itself(attempt, error)
                except (KeyboardInterrupt, GeneratorExit):
                    raise
                except BaseException as error:
                    fault = attempts.fault_of(attempt, error)
                attempts.end(attempt, rewards, fault, self._running)
                if task.cancelling():  # by reward code: the cancellation would hit the next call
                    break
                num_calls += 1
                if num_calls % _CALLS_PER_TURN == 0:
                    await asyncio.sleep(0)
                is_over = self._running + self._num_unsaved > self._governors.limit
                attempt = None if is_over else self._take_nowait()
        finally:
            self._running -= 1
            if task.cancelling():
                self.wake()

    def _take_nowait(self) -> Attempt | None:
        """Starts the oldest job if every governor allows it now; otherwise sets the timer to try again."""
        queue, admission = self._queue, self._admission
        while (entry := self._next_entry()) is not None:
            job = entry.job
            if job.is_done:
                queue.drop()
                continue
            now, tokens, bound_usd = self._loop.time(), 0, None
            if self._ledger.follows_others:
                admission.reclaim(job)
            if self._governors.counts_tokens:
                tokens = admission.tokens_of(job)
            if admission.needs_bounds:
                bound_usd = admission.cost_bound_of(job)
            if job.is_done:  # because one of its hooks raised
                continue
            if admission.needs_bounds and not admission.fits_run(entry, bound_usd):
                continue
            if not admission.may_start(job, now, tokens, bound_usd):
                return None
            queue.pop()
            return self._attempts.start(job, entry.is_hedge, now, tokens, bound_usd)
        return None

    def _next_entry(self) -> QueueEntry | None:
        """Returns the oldest job; for a probe any other, because the oldest may be the cause of the failures."""
        is_probe = self._blame.num_open > 0 and self._governors.is_probe_due(self._loop.time())
        anywhere = self._parts.rng if is_probe else None
        entry = self._queue.first(scarce_slots=self._scarce_slots, anywhere=anywhere)
        if entry is None and (job := self._blame.take_nowait(self._most_failures)) is not None:
            self.add(job)
            entry = self._queue.first(scarce_slots=self._scarce_slots)
        return entry

    @property
    def _most_failures(self) -> float:
        """How many failures a job may have that is asked about again: before the last attempt, first calls must end.

        Their answers may show that the service works, or their failures that it does not.
        """
        return (
            self.limits.max_attempts - 2
            if self._attempts.num_first_calls and self.limits.max_attempts > 1
            else math.inf
        )

    @property
    def _scarce_slots(self) -> int | None:
        """The number of slots, if the call to start would take the last one; else None."""
        limit = self._governors.limit
        return limit if self._running + self._num_unsaved >= limit else None

    def statistics(self) -> DispatchStatistics:
        attempts, quantile = self._attempts, self._attempts.latencies.quantile
        return DispatchStatistics(
            account=self.account,
            in_flight=self._running,
            waiting=sum(not entry.job.is_done for entry in self._queue) + len(self._blame.held_back),
            runs=self._queue.statistics(),
            calls=attempts.num_started,
            outcomes=dict(attempts.outcomes),
            retries=attempts.num_retries,
            hedges=attempts.hedging.num_hedges,
            hedges_won=attempts.hedging.num_won,
            latency_p50_s=quantile(0.5),
            latency_p95_s=quantile(0.95),
            latency_p99_s=quantile(0.99),
            retry=self._parts.budget.statistics(),
            governors=self._governors.statistics(self._loop.time()),
            refusal=attempts.refusal,
        )
