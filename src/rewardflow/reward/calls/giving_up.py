"""Decides when an account gives up: on the service, on jobs that alone get no answer, or because the money is spent.

Always true: an outage is measured only while jobs wait (`outage.py`); jobs are given up in place of the service only if
it has answered others and each of these got no answer itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rewardflow.errors import AgentHalted, BudgetExhausted
from rewardflow.reward.calls.account_parts import AccountParts
from rewardflow.reward.calls.faults import Fault
from rewardflow.reward.calls.outage import OutageClock
from rewardflow.reward.groups.job import Job
from rewardflow.reward.limits.ledger import Ledger


class GivingUp:
    """Knows the jobs of one account that wait for the service, and for how long none could be sent."""

    def __init__(self, parts: AccountParts, halt: Callable[[AgentHalted], None]) -> None:
        self.backing_off: set[Job] = set()  # jobs that wait for the time of their retry
        self._account = parts.account
        self._limits = parts.limits
        self._governors = parts.governors
        self._ledger = parts.ledger
        self._queue = parts.queue
        self._blame = parts.blame
        self._halt = halt
        self._loop = parts.loop
        self.outage = OutageClock(
            parts.account,
            self._loop,
            parts.limits.outage_give_up_s,
            sink=parts.sink,
            is_anyone_waiting=self.is_anyone_waiting,
            give_up_jobs=self._give_up_jobs,
            halt=halt,
        )

    def is_anyone_waiting(self) -> bool:
        return any(True for _ in self._waiting())

    def follow_outage(self) -> None:
        """Starts or stops the clock of the outage, because a breaker opened or closed."""
        if self._governors.outage_since_s() is None:
            self.outage.end()
        elif self.is_anyone_waiting():
            self.outage.begin(self._governors.why_waiting(self._loop.time(), 0))

    def halt_on_budget(self, bound_usd: float | None) -> None:
        """Halts the agent, because the next call, of at most `bound_usd`, could pass the cap."""
        error = BudgetExhausted(_over_budget(self._account, self._ledger, bound_usd))
        self._loop.call_soon(self._halt, error)

    def _waiting(self) -> Iterator[Job]:
        """Yields the jobs that wait for the service, some of them twice."""
        self.backing_off = {job for job in self.backing_off if not job.is_done}
        yield from self.backing_off
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
        is_few = len(waiting) < self._limits.outage_window
        if not all(self._failed_itself(job, is_few=is_few) for job in waiting):
            return False
        for job in waiting:
            if job.fault is not None:
                self._blame.gave_up(job.fault)
                message = f"{job.fault.message}, and no other rollout was left to tell whether the service is down"
                job.fail(job.fault.kind, message, self._loop.time())
        return True

    def _failed_itself(self, job: Job, *, is_few: bool) -> bool:
        """Whether the job got no answer. A 429 counts only if others were answered later: a quota may be spent."""
        match job.fault:
            case Fault(kind="timeout"):
                return True
            case Fault(kind="service"):
                return is_few
            case Fault(kind="rate_limited"):
                return is_few and self._blame.was_refused_alone(job)
        return False


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
