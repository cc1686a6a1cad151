"""Starts a second attempt of a call that takes longer than most.

Always true: hedges are at most `hedge_share` of the calls started, spend the same budget as retries, and a job has at
most one at a time.
"""

from __future__ import annotations

from collections.abc import Callable

from rewardflow.observe.histogram import Histogram
from rewardflow.reward.calls.account_parts import AccountParts
from rewardflow.reward.calls.attempt import Attempt
from rewardflow.reward.groups.job import Job

_LEAST_SAMPLES = 20  # answers, before their latencies tell which call is slow


class Hedging:
    """The hedges of one account. `queue_hedge` queues the second attempt of a job."""

    def __init__(self, parts: AccountParts, latencies: Histogram, queue_hedge: Callable[[Job], None]) -> None:
        limits = parts.limits
        self.quantile = limits.hedge_quantile  # None: no hedges
        self.num_hedges = 0
        self.num_won = 0
        self._share = limits.hedge_share
        self._loop = parts.loop
        self._latencies = latencies
        self._budget = parts.budget
        self._queue_hedge = queue_hedge
        self._num_started = 0

    def arm(self, attempt: Attempt, num_started: int) -> None:
        """Sets the timer of a call that starts now; `num_started` calls have started so far."""
        self._num_started = num_started
        if self.quantile is None or attempt.is_hedge or self._latencies.count < _LEAST_SAMPLES:
            return
        after_s = self._latencies.quantile(self.quantile)
        if after_s is not None:
            attempt.hedge_timer = self._loop.call_later(after_s, self._hedge, attempt.job)

    def _hedge(self, job: Job) -> None:
        """Starts a second attempt of a slow call, if the share of hedges and the retry budget allow it."""
        if job.is_done or job.is_hedged or self.num_hedges + 1 > self._share * self._num_started:
            return
        if self._budget.spend():
            job.is_hedged = True
            self.num_hedges += 1
            self._queue_hedge(job)
