"""Decides what a failed call means for its job: another attempt, now or when the service works again, or a failure.

Always true: a job fails for good only if no call of it is in flight; a failure in an outage uses up no attempt; a 429
counts apart from other failures; no retry is planned for a time at which the verdict would be too late.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from rewardflow.reward.calls.account_parts import AccountParts
from rewardflow.reward.calls.attempt import Attempt
from rewardflow.reward.calls.faults import Fault
from rewardflow.reward.calls.giving_up import GivingUp
from rewardflow.reward.calls.retry import Backoff
from rewardflow.reward.groups.job import Job

MAX_REJECTIONS: Final = 10  # after this many 429 answers the request itself is the problem; more where most are refused


class FailedCalls:
    """The retries of one account. `add` queues a job, `wake` lets the dispatcher look for calls to start."""

    def __init__(
        self, parts: AccountParts, giving_up: GivingUp, *, add: Callable[[Job], None], wake: Callable[[], None]
    ) -> None:
        limits = parts.limits
        self.may_retry = True  # False while the agent drains
        self._limits = limits
        self._governors = parts.governors
        self._blame = parts.blame
        self._giving_up = giving_up
        self._budget = parts.budget
        self._backoff = Backoff(limits.backoff_s, limits.max_backoff_s, parts.rng)
        self._add = add
        self._wake = wake
        self._loop = parts.loop

    def retry_or_fail(self, attempt: Attempt, fault: Fault, now: float) -> None:
        job = attempt.job
        job.fault = fault
        # A failure while the service is down says nothing about this job, and does not use up an attempt.
        is_outage = attempt.endpoint.breaker.is_open and fault.kind in ("timeout", "service", "rate_limited")
        if fault.kind == "rate_limited":
            job.num_rejections += attempt.sent.refusal_weight
            job.first_refused_s = min(job.first_refused_s, now)
            num_failures = max(1, math.ceil(job.num_rejections))
            has_attempts = is_outage or job.num_rejections < MAX_REJECTIONS
        else:
            if not is_outage:
                job.num_failures += 1
                is_outage = fault.kind in ("timeout", "service") and self._ends_in_outage(attempt, fault, now)
            num_failures, has_attempts = max(1, job.num_failures), job.num_failures < self._limits.max_attempts
        delay_s = self._backoff.delay_s(num_failures, attempt.retry_after_s)
        limit_s = self._limits.verdict_timeout_s
        has_time = limit_s is None or now + delay_s < job.started_s + limit_s
        message = fault.message if has_time else f"{fault.message} (no time for another attempt)"
        if fault.is_retryable and has_attempts and has_time and self.may_retry:
            if is_outage or fault.kind == "rate_limited" or self._budget.spend():
                self._plan(job, delay_s, fault, is_outage, now)
                return
            message = f"{message} (retry budget spent)"
        if job.num_running == 0:
            self._blame.gave_up(fault)
            job.fail(fault.kind, message, now, fault.trace)

    def _plan(self, job: Job, delay_s: float, fault: Fault, is_outage: bool, now: float) -> None:
        """Sets the timer of a retry."""
        job.is_hedged = job.num_running > 0
        job.stop_timer()
        job.timer = self._loop.call_later(delay_s, self._add_again, job, now)
        self._giving_up.backing_off.add(job)
        if is_outage:
            self._blame.excuse(job, now)
        if delay_s > self._limits.outage_give_up_s:
            self._giving_up.outage.begin(fault.message)

    def _ends_in_outage(self, attempt: Attempt, fault: Fault, now: float) -> bool:
        """Opens the endpoint's breaker if this failure would be its job's last, and the service seems to be down."""
        job, endpoint = attempt.job, attempt.endpoint
        self._blame.failed(job, endpoint, now)
        if not fault.is_retryable or not 1 < self._limits.max_attempts <= job.num_failures:
            return False
        if not self._blame.suspects_service(job, endpoint) or not self._governors.stop_endpoint(endpoint, now):
            return False
        self._blame.opened(endpoint)
        self._giving_up.follow_outage()
        self._wake()
        return True

    def _add_again(self, job: Job, failed_s: float) -> None:
        """Queues a retry; the time limit of its verdict also holds while it waits."""
        self._giving_up.backing_off.discard(job)
        limit_s = self._limits.verdict_timeout_s
        if limit_s is not None:
            job.timer = self._loop.call_at(job.started_s + limit_s, self._too_late, job)
        is_ambiguous = job.fault is not None and job.fault.kind in ("timeout", "service")
        if is_ambiguous and self._blame.holds_back(job, failed_s):
            self._wake()
        else:
            self._add(job)

    def _too_late(self, job: Job) -> None:
        if job.num_running == 0:
            limit_s = self._limits.verdict_timeout_s
            job.fail("timeout", f"no verdict within verdict_timeout_s={limit_s:g}", self._loop.time())
