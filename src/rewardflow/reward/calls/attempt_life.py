"""Takes one attempt from its start to its end: what it holds, what its answer is, and what that means for its job.

Always true: an attempt that was started is ended once, with rewards, with a fault, or with neither if it was cancelled;
what it took is given back before its outcome is decided.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

from rewardflow.observe.events import WorkerAbandoned
from rewardflow.observe.histogram import Histogram
from rewardflow.reward.calls.account_parts import AccountParts
from rewardflow.reward.calls.attempt import Attempt
from rewardflow.reward.calls.call_records import call_event, outcome_of
from rewardflow.reward.calls.deadlines import Deadlines
from rewardflow.reward.calls.failed_calls import FailedCalls
from rewardflow.reward.calls.faults import Fault, fault_of, user_fault, with_reported_headers
from rewardflow.reward.calls.giving_up import GivingUp
from rewardflow.reward.calls.hedging import Hedging
from rewardflow.reward.code.context_transfer import as_ordinary_exception, may_be_ctrl_c, text_of
from rewardflow.reward.code.coroutine_driver import TasksCancelled
from rewardflow.reward.code.current_call import Call, drop_odd_usage
from rewardflow.reward.groups.job import Job
from rewardflow.types import Reward

logger = logging.getLogger(__name__)

_MAX_PLACES_TOLD = 100


class AttemptLife:
    """Starts and ends the attempts of one account, and counts them. `add` queues a job, `wake` looks for more calls."""

    def __init__(
        self,
        parts: AccountParts,
        giving_up: GivingUp,
        failed_calls: FailedCalls,
        *,
        settled: Callable[[], None] | None,
        add: Callable[[Job], None],
        queue_hedge: Callable[[Job], None],
        wake: Callable[[], None],
    ) -> None:
        self.num_first_calls = 0  # in flight: of jobs that have not failed yet
        self.num_started = 0
        self.num_retries = 0
        self.outcomes: Counter[str] = Counter()
        self.latencies = Histogram()
        self.refusal: str | None = None  # how the service refused its caller, if it has scored nothing since
        self.tasks_cancelled_by: str | None = None  # the reward whose code cancelled its caller's task
        self._places_told: set[str] = set()  # of errors in the user's code
        self._limits = parts.limits
        self._governors = parts.governors
        self._ledger = parts.ledger
        self._blame = parts.blame
        self._giving_up = giving_up
        self._failed_calls = failed_calls
        self._queue = parts.queue
        self._budget = parts.budget
        self._sink = parts.sink
        self._settled = settled
        self._add = add
        self._wake = wake
        self._loop = parts.loop
        self._deadlines = Deadlines(self._loop)
        self.hedging = Hedging(parts, self.latencies, queue_hedge)

    def start(self, job: Job, is_hedge: bool, now: float, tokens: int, bound_usd: float | None) -> Attempt:
        self.num_started += 1
        if job.num_calls == 0:
            self._budget.earn()
            self.num_first_calls += 1
            job.started_s = now
        elif not is_hedge:
            self.num_retries += 1
        if job.timer is not None:
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
        limits = self._limits
        deadline_s = None if limits.timeout_s is None else now + limits.timeout_s
        if limits.verdict_timeout_s is None:
            return deadline_s
        verdict_s = job.started_s + limits.verdict_timeout_s
        return verdict_s if deadline_s is None else min(deadline_s, verdict_s)

    def begin(self, attempt: Attempt) -> tuple[bool, Any]:
        """Starts the reward's code; returns True and an immediate result, or False and the awaitable."""
        job = attempt.job
        if job.is_done:  # cancelled after it took its slot
            return True, None
        attempt.was_made = True
        if self.hedging.quantile is not None:
            self.hedging.arm(attempt, self.num_started)
        return job.scorer.begin(attempt, job.context.copy())

    @staticmethod
    def parse(attempt: Attempt, answer: Any) -> tuple[Reward, ...] | None:
        job = attempt.job
        try:
            return None if job.is_done else job.scorer.loaded.parse(answer, len(job.rollouts))
        except (GeneratorExit, KeyboardInterrupt) as error:  # from a method of the user's own answer
            if may_be_ctrl_c(error):
                raise
            raise as_ordinary_exception(error) from error

    def fault_of(self, attempt: Attempt, error: BaseException) -> Fault:
        if isinstance(error, TasksCancelled):
            self.tasks_cancelled_by = attempt.job.scorer.name
        if not attempt.is_expired:
            fault = fault_of(error)
            if fault.refuses_caller:
                self.refusal = fault.message
            if fault.kind == "user_error":
                fault = self._user_fault(attempt, error)
            return with_reported_headers(fault, attempt.call.headers)
        took_s = self._loop.time() - attempt.started_s
        waited_for = text_of(error)  # named by the thread that waited for it
        killed = f"{waited_for} did not end and was killed: " if waited_for else ""
        return Fault(kind="timeout", message=f"{killed}no answer within {took_s:g} s", is_retryable=True)

    def cancelled_by_itself(self, attempt: Attempt, error: BaseException) -> Fault:
        """Returns the fault of a reward that raised CancelledError although nobody cancelled it."""
        return self._user_fault(attempt, error, "the reward raised CancelledError")

    def _user_fault(self, attempt: Attempt, error: BaseException, message: str | None = None) -> Fault:
        scorer = attempt.job.scorer
        fault = user_fault(error, message, defined_at=scorer.loaded.defined_at)
        place = fault.message.rpartition(" (")[2]
        if fault.trace and place not in self._places_told and len(self._places_told) < _MAX_PLACES_TOLD:
            self._places_told.add(place)
            logger.info("reward %s failed: %s\n%s", scorer.name, fault.message, fault.trace)
        return fault

    def end(self, attempt: Attempt, rewards: tuple[Reward, ...] | None, fault: Fault | None, num_running: int) -> None:
        """Frees the attempt's resources, then decides what its outcome means for the job."""
        job, call, now = attempt.job, attempt.call, self._loop.time()
        job.num_running -= 1
        self.num_first_calls -= call.attempt == 1
        job.scorer.num_busy -= 1
        job.release(attempt)
        self._queue.end(job.group.ticket.run, now - attempt.started_s)
        if attempt.hedge_timer is not None:
            attempt.hedge_timer.cancel()
        drop_odd_usage(call)
        if rewards is not None:
            for reward in rewards:  # a cost in the result counts like a reported one
                call.cost_usd += reward.cost_usd
                call.tokens += reward.tokens
        self._settle(attempt, outcome_of(job, rewards, fault), fault, num_running, now)
        job.cost_usd += call.cost_usd
        job.tokens += call.tokens
        if job.is_done:
            return
        if rewards is not None:
            self.hedging.num_won += attempt.is_hedge
            job.succeed(rewards, now)
        elif fault is not None:
            self._failed_calls.retry_or_fail(attempt, fault, now)

    def _settle(self, attempt: Attempt, outcome: str, fault: Fault | None, num_running: int, now: float) -> None:
        breaker = attempt.endpoint.breaker
        was_open = breaker.is_open
        is_answered = self._governors.settle(attempt, outcome, fault, num_running, now)
        is_open = breaker.is_open
        if is_open and not was_open:
            self._blame.opened(attempt.endpoint)
        elif was_open and not is_open:
            self._blame.closed()
        if is_answered:
            for job in self._blame.answered(attempt.endpoint, attempt.started_s, now):
                self._add(job)
        self.outcomes[outcome] += 1
        latency_s = now - attempt.started_s
        if outcome == "scored":
            self.latencies.add(latency_s)
            self.refusal = None
        if is_open or self._giving_up.outage.is_running:
            self._giving_up.follow_outage()
            self._wake()
        sink = attempt.job.group.ticket.sink
        if sink is not None:
            sink.emit(call_event(attempt, outcome, latency_s, now))
        if self._sink is not None and attempt.is_expired and attempt.job.scorer.num_stuck:
            name, stuck = attempt.job.scorer.name, attempt.job.scorer.num_stuck
            self._sink.emit(WorkerAbandoned(at_s=now, reward=name, num_abandoned=stuck))
        if self._settled is not None:
            self._settled()
        if num_running < self._governors.limit and self._queue:
            self._wake()
