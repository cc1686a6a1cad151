"""Says whether the next call of an account may start now, and otherwise when to ask again.

Always true: a call starts only if a worker is free, every governor allows it now, and the most that it can cost is left
of the cap and of its run's own. Nothing here sleeps: "not now" sets the one timer, unless the end of a call in flight
will wake the dispatcher.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from rewardflow.reward.calls.account_parts import AccountParts
from rewardflow.reward.calls.fair_queue import QueueEntry
from rewardflow.reward.calls.faults import describe_with_place
from rewardflow.reward.calls.giving_up import GivingUp
from rewardflow.reward.code.context_transfer import may_be_ctrl_c
from rewardflow.reward.groups.job import Job


class Admission:
    """The conditions under which calls of one account start. `woken` is called when it is time to ask again."""

    def __init__(
        self, parts: AccountParts, giving_up: GivingUp, *, add: Callable[[Job], None], woken: Callable[[], None]
    ) -> None:
        self.is_open = True  # False once the dispatcher stops or drains
        self.needs_bounds = parts.ledger.needs_bounds or parts.run_ledgers is not None
        self._account = parts.account
        self._limits = parts.limits
        self._governors = parts.governors
        self._ledger = parts.ledger
        self._run_ledgers = parts.run_ledgers
        self._queue = parts.queue
        self._giving_up = giving_up
        self._add = add
        self._woken = woken
        self._loop = parts.loop
        self._wake_timer: asyncio.TimerHandle | None = None

    def stop(self) -> None:
        self.is_open = False
        if self._wake_timer is not None:
            self._wake_timer.cancel()

    def reclaim(self, job: Job) -> None:
        """Takes back what an earlier session set aside for this job, if its requests are found again."""
        if job.num_calls or job.is_reclaimed or not self._ledger.is_reclaimable(self._account):
            return
        answers = job.scorer.loaded.late_answers
        if answers is not None:
            job.is_reclaimed = True
            self._ledger.reclaim(self._account, answers.reserved_before_usd(job.rollouts))

    def fits_run(self, entry: QueueEntry, bound_usd: float | None) -> bool:
        """Whether a call fits under its run's cap; if not, takes it out of the way of other runs' calls."""
        run_ledgers = self._run_ledgers
        if run_ledgers is None:
            return True
        job, run = entry.job, entry.job.group.ticket.run
        problem = self._governors.run_over_cap(run, bound_usd)
        if problem is None:
            return True
        self._queue.pop()
        if entry.is_hedge:
            return False
        run_ledger = run_ledgers.of(run)
        if run_ledger.num_out or run_ledger.is_waiting_for_journal:
            run_ledgers.hold_back(run, lambda: self._add(job))
        else:
            job.fail("budget", problem, self._loop.time())
        return False

    def tokens_of(self, job: Job) -> int:
        """Estimates the tokens of the call; fails the job if the reward's own estimate raises."""
        try:
            return job.scorer.estimate_tokens(job.rollouts, self._governors.usual_tokens())
        except BaseException as error:
            self._fail(job, "estimate_tokens", error)
            return 0

    def cost_bound_of(self, job: Job) -> float | None:
        """Returns the most that the call can cost, or None if that is not known; fails the job if its hook raises."""
        if job.cost_bound_usd is None:
            try:
                bound_usd = job.scorer.cost_bound_usd(job.rollouts)
            except BaseException as error:
                self._fail(job, "cost_bound_usd", error)
                return None
            job.cost_bound_usd = math.inf if bound_usd is None else bound_usd
        return None if job.cost_bound_usd == math.inf else job.cost_bound_usd

    def _fail(self, job: Job, hook: str, error: BaseException) -> None:
        """Fails the job, whatever its hook raised: GeneratorExit or CancelledError would end the runner without a word.

        Raises what may be a Ctrl-C.
        """
        if may_be_ctrl_c(error):
            raise error
        job.fail("user_error", f"{hook} failed: {describe_with_place(error)}", self._loop.time())

    def may_start(self, job: Job, now: float, tokens: int, bound_usd: float | None) -> bool:
        if not self.is_open or (job.scorer.workers is not None and not self._has_worker(job)):
            return False
        ready_s = self._governors.ready_at(now, tokens)
        if ready_s > now:
            self._wake_at(ready_s)
            is_too_long = self._limits.outage_give_up_s < ready_s - now < math.inf
            if is_too_long or self._governors.outage_since_s() is not None:
                self._giving_up.outage.begin(self._governors.why_waiting(now, tokens))
            return False
        ledger = self._ledger
        if ledger.cap_usd is not None and not ledger.may_start(self._account, bound_usd):
            if ledger.num_out == 0 and not ledger.is_waiting_for_journal:
                self._giving_up.halt_on_budget(bound_usd)
            return False
        return True

    def _has_worker(self, job: Job) -> bool:
        scorer = job.scorer
        if scorer.num_busy < scorer.num_usable:
            return True
        if scorer.num_usable == 0 and scorer.num_stuck:  # and no more threads may be replaced
            self._giving_up.outage.begin(f"all threads of {scorer.name} are stuck in calls that were given up")
        return False

    def _wake_at(self, when_s: float) -> None:
        if when_s == math.inf:
            return  # the end of a call in flight wakes the dispatcher
        if self._wake_timer is not None:
            if self._wake_timer.when() <= when_s:
                return
            self._wake_timer.cancel()
        self._wake_timer = self._loop.call_at(when_s, self._on_time)

    def _on_time(self) -> None:
        self._wake_timer = None
        self._woken()
