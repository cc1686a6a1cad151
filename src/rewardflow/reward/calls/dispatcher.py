"""Starts the calls of one service account when its governors allow it, and brings each job to its one outcome.

Always true: within a run the oldest step goes first and, within it, groups one after another; runs that share the
account get their shares of it (`fair_queue.py`); no call starts above the limit; a call that ends frees its slot, by a
result or an error. Nothing here sleeps: every governor answers "when may the next call start?", a runner takes jobs
until the answer is "not now", and one timer wakes the dispatcher at the earliest such time.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rewardflow.clock import chance
from rewardflow.errors import AgentHalted, BudgetExhausted
from rewardflow.observe.events import CallEnded, EventSink, WorkerAbandoned
from rewardflow.observe.histogram import Histogram
from rewardflow.reward.calls.attempt import Attempt
from rewardflow.reward.calls.blame import Blame
from rewardflow.reward.calls.deadlines import Deadlines
from rewardflow.reward.calls.fair_queue import FairQueue, QueueEntry, RunStatistics
from rewardflow.reward.calls.faults import Fault, describe, fault_of, with_reported_headers
from rewardflow.reward.calls.outage import OutageClock
from rewardflow.reward.calls.retry import Backoff, RetryBudget, RetryStatistics
from rewardflow.reward.code.coroutine_driver import TasksCancelled
from rewardflow.reward.code.current_call import Call
from rewardflow.reward.groups.job import Job
from rewardflow.reward.limits.governors import Governors, GovernorStatistics
from rewardflow.reward.limits.ledger import Ledger
from rewardflow.reward.limits.run_ledgers import RunLedgers
from rewardflow.reward.settings import LimitSettings
from rewardflow.types import Reward

logger = logging.getLogger(__name__)

_STARTS_PER_TURN = 256  # so that filling 20,000 slots does not freeze the loop
_CALLS_PER_TURN = 64  # a runner whose calls never wait yields to the loop after this many
_MAX_REJECTIONS = 10  # after this many 429 answers the request itself is the problem
_HEDGE_SAMPLES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchStatistics:
    account: str
    in_flight: int
    waiting: int
    calls: int
    outcomes: dict[str, int]
    retries: int
    hedges: int
    hedges_won: int
    latency_p50_s: float | None
    latency_p95_s: float | None
    latency_p99_s: float | None
    retry: RetryStatistics
    governors: GovernorStatistics
    runs: tuple[RunStatistics, ...] = ()  # the runs that have had work here


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
        self._ledger = ledger
        self._tasks = tasks
        self._sink = sink
        self._halt = halt
        self._settled = settled
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()  # for runners: independent of who submitted the rollouts
        self._governors = Governors(account, limits, ledger, sink, run_ledgers)
        self._run_ledgers = run_ledgers if run_ledgers is not None and run_ledgers.has_caps else None
        self._budget = RetryBudget(limits.retry_budget, savings=self._governors.limit)
        self._rng = chance(self._loop)
        self._backoff = Backoff(limits.backoff_s, limits.max_backoff_s, self._rng)
        self._blame = Blame(limits.outage_window)
        self._num_broken = 0  # endpoints whose breaker is open
        self._queue = FairQueue()
        self._sequence = 0
        self._running = 0
        self._num_unsaved = 0
        self._num_first_calls = 0  # in flight: of jobs that have not failed yet
        self._num_started = 0
        self._num_retries = 0
        self._outcomes: Counter[str] = Counter()
        self._hedges = 0
        self._hedges_won = 0
        self._latencies = Histogram()
        self._deadlines = Deadlines(self._loop)
        self._wake_timer: asyncio.TimerHandle | None = None
        self._pump_handle: asyncio.Handle | None = None
        self._backing_off: set[Job] = set()
        self._handed_over: set[Attempt] = set()
        self._outage = OutageClock(
            account,
            self._loop,
            limits.outage_give_up_s,
            sink=sink,
            is_anyone_waiting=self._is_anyone_waiting,
            give_up_jobs=self._give_up_jobs,
            halt=halt,
        )
        self.tasks_cancelled_by: str | None = None  # the reward whose code cancelled its caller's task
        self._is_stopped = False
        self._is_draining = False

    # -- which call starts next, and when ----------------------------------------------------------------------------

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

    def wake(self) -> None:
        """Schedules a check whether calls may start, because something changed."""
        if self._pump_handle is None and not self._is_stopped:
            self._pump_handle = self._loop.call_soon(self._pump)

    def stop(self) -> None:
        """Starts no more calls; a call in flight ends through its job."""
        self._is_stopped = True
        for handle in (self._wake_timer, self._pump_handle):
            if handle is not None:
                handle.cancel()
        self._outage.stop()
        self._queue.clear()

    def drain(self) -> None:
        """Starts no more calls, also no retries; calls in flight go on to their end."""
        self._is_draining = True

    def saving(self) -> None:
        """Keeps a verdict's slot taken until it is on disk, so that a crash never loses more than the limit."""
        self._num_unsaved += 1

    def saved(self, cost_usd: float) -> None:
        """Frees the slot of a verdict; `cost_usd` is the part of its cost that is on disk now."""
        self._num_unsaved -= 1
        if cost_usd:
            self._ledger.saved(self.account, cost_usd)
        self.wake()

    def finish(self) -> None:
        """Ends attempts whose runner was cancelled before its first step; called after the last runner ended."""
        for attempt in self._handed_over:
            self._running -= 1
            self._end(attempt, None, None)
        self._handed_over.clear()

    def prune(self) -> None:
        """Drops jobs that were cancelled in the queue."""
        self._queue.prune()
        if self._outage.is_running and not self._is_anyone_waiting():
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
        num_calls = 0
        task = asyncio.current_task()
        assert task is not None
        attempt: Attempt | None = first
        self._handed_over.discard(first)
        try:
            while attempt is not None:
                rewards, fault = None, None
                attempt.task = task
                try:
                    is_done, answer = self._begin(attempt)
                    if not is_done:  # an immediate answer needs no time limit
                        with attempt:
                            attempt.job.hold(attempt)
                            answer = await answer
                    rewards = self._parse(attempt, answer)
                except asyncio.CancelledError:
                    if self._is_stopped:
                        self._end(attempt, None, None)
                        raise
                    fault = Fault(kind="user_error", message="the reward raised CancelledError")
                except (KeyboardInterrupt, GeneratorExit):
                    raise
                except BaseException as error:
                    fault = self._fault_of(attempt, error)
                self._end(attempt, rewards, fault)
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
        queue = self._queue
        while (entry := self._next_entry()) is not None:
            job = entry.job
            if job.is_done:
                queue.drop()
                continue
            now = self._loop.time()
            if self._ledger.is_reclaimable(self.account) and job.num_calls == 0:
                self._reclaim(job)
            tokens = self._estimate_tokens(job) if self._governors.counts_tokens else 0
            needs_bound = self._ledger.needs_bounds or self._run_ledgers is not None
            bound_usd = self._bound_cost(job) if needs_bound else None
            if job.is_done:  # because one of its hooks raised
                continue
            if self._run_ledgers is not None and not self._fits_run(entry, self._run_ledgers, bound_usd):
                continue
            if not self._may_start(job, now, tokens, bound_usd):
                return None
            queue.pop()
            return self._start(job, entry.is_hedge, now, tokens, bound_usd)
        return None

    def _next_entry(self) -> QueueEntry | None:
        """Returns the oldest job; for a probe any other, because the oldest may be the cause of the failures."""
        is_probe = self._num_broken > 0 and self._governors.is_probe_due(self._loop.time())
        anywhere = self._rng if is_probe else None
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
        return self.limits.max_attempts - 2 if self._num_first_calls and self.limits.max_attempts > 1 else math.inf

    @property
    def _scarce_slots(self) -> int | None:
        """The number of slots, if the call to start would take the last one; else None."""
        limit = self._governors.limit
        return limit if self._running + self._num_unsaved >= limit else None

    def _estimate_tokens(self, job: Job) -> int:
        """Estimates the tokens of the call; fails the job if the reward's own estimate raises."""
        try:
            return job.scorer.estimate_tokens(job.rollouts, self._governors.usual_tokens())
        except Exception as error:
            job.fail("user_error", f"estimate_tokens failed: {describe(error)}", self._loop.time())
            return 0

    def _bound_cost(self, job: Job) -> float | None:
        """Returns the most that the call can cost, or None if that is not known; fails the job if its hook raises."""
        if job.cost_bound_usd is None:
            try:
                bound_usd = job.scorer.cost_bound_usd(job.rollouts)
            except Exception as error:
                job.fail("user_error", f"cost_bound_usd failed: {describe(error)}", self._loop.time())
                return None
            job.cost_bound_usd = math.inf if bound_usd is None else bound_usd
        return None if job.cost_bound_usd == math.inf else job.cost_bound_usd

    def _reclaim(self, job: Job) -> None:
        """Takes back what an earlier session set aside for this job, if its requests are found again."""
        answers = job.scorer.loaded.late_answers
        if answers is not None and not job.is_reclaimed:
            job.is_reclaimed = True
            self._ledger.reclaim(self.account, answers.reserved_before_usd(job.rollouts[0]))

    def _may_start(self, job: Job, now: float, tokens: int, bound_usd: float | None) -> bool:
        if self._is_stopped or self._is_draining or (job.scorer.workers is not None and not self._has_worker(job)):
            return False
        ready_s = self._governors.ready_at(now, tokens)
        if ready_s > now:
            self._wake_at(ready_s)
            is_too_long = self.limits.outage_give_up_s < ready_s - now < math.inf
            if is_too_long or self._governors.outage_since_s() is not None:
                self._outage.begin(self._governors.why_waiting(now, tokens))
            return False
        ledger = self._ledger
        if ledger.cap_usd is not None and not ledger.may_start(self.account, bound_usd):
            if ledger.num_out == 0 and not ledger.is_waiting_for_journal:
                self._give_up_on_budget(bound_usd)
            return False
        return True

    def _fits_run(self, entry: QueueEntry, run_ledgers: RunLedgers, bound_usd: float | None) -> bool:
        """Whether a call fits under its run's cap; if not, takes it out of the way of other runs' calls."""
        job, run = entry.job, entry.job.group.ticket.run
        problem = self._governors.run_over_cap(run, bound_usd)
        if problem is None:
            return True
        self._queue.pop()
        if entry.is_hedge:
            return False
        if run_ledgers.of(run).num_out:
            run_ledgers.hold_back(run, lambda: self.add(job))
        else:
            job.fail("budget", problem, self._loop.time())
        return False

    def _has_worker(self, job: Job) -> bool:
        scorer = job.scorer
        if scorer.num_busy < scorer.num_usable:
            return True
        if scorer.num_usable == 0 and scorer.num_stuck:  # and no more threads may be replaced
            self._outage.begin(f"all threads of {scorer.name} are stuck in calls that were given up")
        return False

    def _wake_at(self, when_s: float) -> None:
        if when_s == math.inf:
            return  # the end of a call in flight wakes the dispatcher
        if self._wake_timer is not None:
            if self._wake_timer.when() <= when_s:
                return
            self._wake_timer.cancel()
        self._wake_timer = self._loop.call_at(when_s, self._woken)

    def _woken(self) -> None:
        self._wake_timer = None
        self._pump()

    # -- one attempt -------------------------------------------------------------------------------------------------

    def _start(self, job: Job, is_hedge: bool, now: float, tokens: int, bound_usd: float | None) -> Attempt:
        self._num_started += 1
        if job.num_calls == 0:
            self._budget.earn()
            self._num_first_calls += 1
            job.started_s = now
        elif not is_hedge:
            self._num_retries += 1
        job.stop_timer()
        job.num_calls += 1
        job.num_running += 1
        job.scorer.num_busy += 1
        attempt = Attempt(self._deadlines, job, is_hedge, now)
        self._governors.start(attempt, tokens, bound_usd)
        job.endpoint = attempt.endpoint
        attempt.call = Call(job.rollouts, job.num_calls, attempt.endpoint.name)
        if self._ledger.is_journaled:
            attempt.call.reserved_usd = attempt.reserved_usd
        attempt.when_s = self._deadline_s(job, now)
        return attempt

    def _deadline_s(self, job: Job, now: float) -> float | None:
        limits = self.limits
        deadline_s = None if limits.timeout_s is None else now + limits.timeout_s
        if limits.verdict_timeout_s is None:
            return deadline_s
        verdict_s = job.started_s + limits.verdict_timeout_s
        return verdict_s if deadline_s is None else min(deadline_s, verdict_s)

    def _begin(self, attempt: Attempt) -> tuple[bool, Any]:
        """Starts the reward's code; returns True and an immediate result, or False and the awaitable."""
        job = attempt.job
        if job.is_done:  # cancelled after it took its slot
            return True, None
        attempt.was_made = True
        if self.limits.hedge_quantile is not None:
            self._arm_hedge(attempt)
        return job.scorer.begin(attempt, job.context.copy())

    def _parse(self, attempt: Attempt, answer: Any) -> tuple[Reward, ...] | None:
        job = attempt.job
        return None if job.is_done else job.scorer.loaded.parse(answer, len(job.rollouts))

    def _fault_of(self, attempt: Attempt, error: BaseException) -> Fault:
        if isinstance(error, TasksCancelled):
            self.tasks_cancelled_by = attempt.job.scorer.name
        if not attempt.is_expired:
            return with_reported_headers(fault_of(error), attempt.call.headers)
        took_s = self._loop.time() - attempt.started_s
        killed = f"{error} did not end and was killed: " if str(error) else ""  # named by the thread that waited for it
        return Fault(kind="timeout", message=f"{killed}no answer within {took_s:g} s", is_retryable=True)

    def _end(self, attempt: Attempt, rewards: tuple[Reward, ...] | None, fault: Fault | None) -> None:
        """Frees the attempt's resources, then decides what its outcome means for the job."""
        job, call, now = attempt.job, attempt.call, self._loop.time()
        job.num_running -= 1
        self._num_first_calls -= call.attempt == 1
        job.scorer.num_busy -= 1
        job.release(attempt)
        self._queue.end(job.group.ticket.run, now - attempt.started_s)
        if attempt.hedge_timer is not None:
            attempt.hedge_timer.cancel()
        if rewards is not None:
            for reward in rewards:  # a cost in the result counts like a reported one
                call.cost_usd += reward.cost_usd
                call.tokens += reward.tokens
        self._settle(attempt, _outcome(job, rewards, fault), fault, now)
        job.cost_usd += call.cost_usd
        job.tokens += call.tokens
        if job.is_done:
            return
        if rewards is not None:
            self._hedges_won += attempt.is_hedge
            job.succeed(rewards, now)
        elif fault is not None:
            self._retry_or_fail(attempt, fault, now)

    def _settle(self, attempt: Attempt, outcome: str, fault: Fault | None, now: float) -> None:
        breaker = attempt.endpoint.breaker
        was_open = breaker.is_open
        is_answered = self._governors.settle(attempt, outcome, fault, self._running, now)
        is_open = breaker.is_open
        if is_open != was_open:
            self._num_broken += 1 if is_open else -1
            if is_open:
                self._blame.opened(attempt.endpoint)
        if is_answered:
            for job in self._blame.answered(attempt.endpoint, attempt.started_s, now):
                self.add(job)
        self._outcomes[outcome] += 1
        latency_s = now - attempt.started_s
        if outcome == "scored":
            self._latencies.add(latency_s)
        if is_open or self._outage.is_running:
            self._follow_outage()
        sink = attempt.job.group.ticket.sink
        if sink is not None:
            sink.emit(_call_event(attempt, outcome, latency_s, now))
        if self._sink is not None and attempt.is_expired and attempt.job.scorer.num_stuck:
            name, stuck = attempt.job.scorer.name, attempt.job.scorer.num_stuck
            self._sink.emit(WorkerAbandoned(at_s=now, reward=name, num_abandoned=stuck))
        if self._settled is not None:
            self._settled()
        if self._running < self._governors.limit and self._queue:
            self.wake()

    def _retry_or_fail(self, attempt: Attempt, fault: Fault, now: float) -> None:
        job = attempt.job
        job.fault = fault
        # A failure while the service is down says nothing about this job, and does not use up an attempt.
        is_outage = attempt.endpoint.breaker.is_open and fault.kind in ("timeout", "service", "rate_limited")
        if fault.kind == "rate_limited":
            job.num_rejections += 1
            num_failures, may_retry = job.num_rejections, is_outage or job.num_rejections < _MAX_REJECTIONS
        else:
            if not is_outage:
                job.num_failures += 1
                is_outage = fault.kind in ("timeout", "service") and self._ends_in_outage(attempt, fault, now)
            num_failures, may_retry = max(1, job.num_failures), job.num_failures < self.limits.max_attempts
        delay_s = self._backoff.delay_s(num_failures, fault.retry_after_s)
        limit_s = self.limits.verdict_timeout_s
        has_time = limit_s is None or now + delay_s < job.started_s + limit_s
        message = fault.message if has_time else f"{fault.message} (no time for another attempt)"
        if fault.is_retryable and may_retry and has_time and not self._is_draining:
            if is_outage or fault.kind == "rate_limited" or self._budget.spend():
                job.is_hedged = job.num_running > 0
                job.stop_timer()
                job.timer = self._loop.call_later(delay_s, self._add_again, job, now)
                self._backing_off.add(job)
                if is_outage:
                    self._blame.excuse(job, now)
                if delay_s > self.limits.outage_give_up_s:
                    self._outage.begin(fault.message)
                return
            message = f"{message} (retry budget spent)"
        if job.num_running == 0:
            self._blame.gave_up(fault)
            job.fail(fault.kind, message, now)

    def _ends_in_outage(self, attempt: Attempt, fault: Fault, now: float) -> bool:
        """Opens the endpoint's breaker if this failure would be its job's last, and the service seems to be down."""
        job, endpoint = attempt.job, attempt.endpoint
        self._blame.failed(job, endpoint, now)
        if not fault.is_retryable or not 1 < self.limits.max_attempts <= job.num_failures:
            return False
        if not self._blame.suspects_service(job, endpoint) or not self._governors.stop_endpoint(endpoint, now):
            return False
        self._num_broken += 1
        self._blame.opened(endpoint)
        self._follow_outage()
        return True

    def _add_again(self, job: Job, failed_s: float) -> None:
        """Queues a retry; the time limit of its verdict also holds while it waits."""
        self._backing_off.discard(job)
        limit_s = self.limits.verdict_timeout_s
        if limit_s is not None:
            job.timer = self._loop.call_at(job.started_s + limit_s, self._too_late, job)
        is_ambiguous = job.fault is not None and job.fault.kind in ("timeout", "service")
        if is_ambiguous and self._blame.holds_back(job, failed_s):
            self.wake()
        else:
            self.add(job)

    def _too_late(self, job: Job) -> None:
        if job.num_running == 0:
            limit_s = self.limits.verdict_timeout_s
            job.fail("timeout", f"no verdict within verdict_timeout_s={limit_s:g}", self._loop.time())

    # -- hedging -----------------------------------------------------------------------------------------------------

    def _arm_hedge(self, attempt: Attempt) -> None:
        quantile = self.limits.hedge_quantile
        if quantile is None or attempt.is_hedge or self._latencies.count < _HEDGE_SAMPLES:
            return
        after_s = self._latencies.quantile(quantile)
        if after_s is not None:
            attempt.hedge_timer = self._loop.call_later(after_s, self._hedge, attempt.job)

    def _hedge(self, job: Job) -> None:
        """Starts a second attempt of a slow call, if the share of hedges and the retry budget allow it."""
        if job.is_done or job.is_hedged or self._hedges + 1 > self.limits.hedge_share * self._num_started:
            return
        if self._budget.spend():
            job.is_hedged = True
            self._hedges += 1
            self.add(job, is_hedge=True)

    # -- giving up ---------------------------------------------------------------------------------------------------

    def _follow_outage(self) -> None:
        if self._governors.outage_since_s() is None:
            self._outage.end()
        elif self._is_anyone_waiting():
            self._outage.begin(self._governors.why_waiting(self._loop.time(), 0))
        self.wake()

    def _is_anyone_waiting(self) -> bool:
        return any(True for _ in self._waiting())

    def _waiting(self) -> Iterator[Job]:
        """Yields the jobs that wait for the service, some of them twice."""
        self._backing_off = {job for job in self._backing_off if not job.is_done}
        yield from self._backing_off
        yield from self._blame.excused
        yield from self._blame.held_back
        yield from (entry.job for entry in self._queue if not entry.job.is_done)

    def _give_up_jobs(self) -> bool:
        """Fails the jobs that wait, if the service has answered others and each of these got no answer itself.

        The service may be down, but there is no other job left that could tell, and the same jobs would end every
        later run in an outage too.
        """
        if self._governors.outage_since_s() is None or not self._blame.was_answered:
            return False
        waiting = dict.fromkeys(self._waiting())
        told = ("timeout", "service") if len(waiting) < self.limits.outage_window else ("timeout",)
        if not all(job.fault is not None and job.fault.kind in told for job in waiting):
            return False
        for job in waiting:
            if job.fault is not None:
                self._blame.gave_up(job.fault)
                message = f"{job.fault.message}, and no other rollout was left to tell whether the service is down"
                job.fail(job.fault.kind, message, self._loop.time())
        return True

    def _give_up_on_budget(self, bound_usd: float | None) -> None:
        error = BudgetExhausted(_over_budget(self.account, self._ledger, bound_usd))
        self._loop.call_soon(self._halt, error)

    # -- statistics --------------------------------------------------------------------------------------------------

    def statistics(self) -> DispatchStatistics:
        quantile = self._latencies.quantile
        return DispatchStatistics(
            account=self.account,
            in_flight=self._running,
            waiting=sum(not entry.job.is_done for entry in self._queue) + len(self._blame.held_back),
            runs=self._queue.statistics(),
            calls=self._num_started,
            outcomes=dict(self._outcomes),
            retries=self._num_retries,
            hedges=self._hedges,
            hedges_won=self._hedges_won,
            latency_p50_s=quantile(0.5),
            latency_p95_s=quantile(0.95),
            latency_p99_s=quantile(0.99),
            retry=self._budget.statistics(),
            governors=self._governors.statistics(self._loop.time()),
        )


def _call_event(attempt: Attempt, outcome: str, latency_s: float, now: float) -> CallEnded:
    first = attempt.job.rollouts[0]
    return CallEnded(
        at_s=now,
        step=first.step,
        group_id=first.group_id,
        index=first.index,
        reward=attempt.job.scorer.name,
        attempt=attempt.call.attempt,
        endpoint=attempt.endpoint.shown,
        started_s=attempt.started_s,
        latency_s=latency_s,
        outcome=outcome,
        cost_usd=attempt.call.cost_usd,
        tokens=attempt.call.tokens,
        is_hedge=attempt.is_hedge,
        source=attempt.job.group.ticket.source,
        cached_tokens=attempt.call.cached_tokens,
        cache_saved_usd=attempt.call.cache_saved_usd,
    )


def _over_budget(account: str, ledger: Ledger, bound_usd: float | None) -> str:
    money, price_usd = ledger.statistics(), ledger.next_price_usd(account, bound_usd)
    parts = [f"spent so far: {money.spent_usd:.6g} USD"]
    if money.uncertain_usd:
        parts.append(
            f"uncertain: {money.uncertain_usd:.6g} USD, for calls that may have been charged but told no cost (cut "
            "off, timed out, or in flight when a run was killed)"
        )
    if price_usd:
        parts.append(f"reserved for the next call: {price_usd:.6g} USD")
    return (
        f"{account}: the next call could pass max_cost_usd={money.cap_usd:g}, {'; '.join(parts)}. "
        "Raise the cap and run again with the same journal to go on"
    )


def _outcome(job: Job, rewards: tuple[Reward, ...] | None, fault: Fault | None) -> str:
    """Names how the call ended, for governors and counters; the outcome of its job may differ."""
    if rewards is not None:
        is_scored = rewards[0].value is not None or any(reward.value is not None for reward in rewards)
        return "scored" if is_scored else "unparsable"
    return "cancelled" if fault is None or job.is_done else fault.kind
