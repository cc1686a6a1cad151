"""Describes calls for others: how one ended, its event, and the figures of an account.

Always true: an outcome is "scored", "unparsable", "cancelled" or the kind of the fault; that of its job may differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from rewardflow.observe.events import CallEnded
from rewardflow.reward.calls.attempt import Attempt
from rewardflow.reward.calls.fair_queue import RunStatistics
from rewardflow.reward.calls.faults import Fault
from rewardflow.reward.calls.retry import RetryStatistics
from rewardflow.reward.groups.job import Job
from rewardflow.reward.limits.governors import GovernorStatistics
from rewardflow.types import Reward


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
    refusal: str | None = None  # how the service refused its caller (401, 403), if it has scored nothing since


def outcome_of(job: Job, rewards: tuple[Reward, ...] | None, fault: Fault | None) -> str:
    """Names how a call of the job ended, for governors and counters."""
    if rewards is not None:
        is_scored = rewards[0].value is not None or any(reward.value is not None for reward in rewards)
        return "scored" if is_scored else "unparsable"
    return "cancelled" if fault is None or job.is_done else fault.kind


def call_event(attempt: Attempt, outcome: str, latency_s: float, now: float) -> CallEnded:
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
