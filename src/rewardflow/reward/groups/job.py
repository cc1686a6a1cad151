"""One call to make (for one rollout or one whole group) and its single outcome.

Always true: a job is resolved exactly once, whatever its attempts, hedges and cancellations do afterwards.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from rewardflow.reward.code.current_call import drop_odd_usage
from rewardflow.types import FailureKind, Reward, Rollout

if TYPE_CHECKING:
    from rewardflow.reward.calls.attempt import Attempt
    from rewardflow.reward.calls.faults import Fault
    from rewardflow.reward.code.scorer import Scorer
    from rewardflow.reward.groups.pending_group import PendingGroup
    from rewardflow.reward.limits.endpoints import Endpoint

Resolved = Callable[["Job", tuple[Reward, ...]], None]


class Job:
    """One call and its state. Only its dispatcher changes the state; all others see `resolved` called once."""

    __slots__ = (
        "attempt_out",
        "column",
        "context",
        "cost_bound_usd",
        "cost_usd",
        "endpoint",
        "fault",
        "first_refused_s",
        "group",
        "hedge_out",
        "is_done",
        "is_hedged",
        "is_reclaimed",
        "is_suspect",
        "keys",
        "num_calls",
        "num_failures",
        "num_rejections",
        "num_running",
        "queued_s",
        "resolved",
        "rollouts",
        "scorer",
        "started_s",
        "timer",
        "tokens",
    )

    def __init__(
        self,
        scorer: Scorer,
        rollouts: tuple[Rollout, ...],
        group: PendingGroup,
        column: int,
        context: contextvars.Context,
        resolved: Resolved,
    ) -> None:
        self.scorer = scorer
        self.rollouts = rollouts
        self.group = group
        self.column = column
        self.context = context
        self.resolved = resolved
        self.keys: tuple[bytes, ...] = ()
        self.is_done = False
        self.is_hedged = False
        self.is_reclaimed = False  # what an earlier session set aside for it was taken back
        self.is_suspect = False  # it failed, and then another job was answered
        self.fault: Fault | None = None  # of the last attempt that failed
        self.num_calls = 0
        self.num_failures = 0
        self.num_rejections = 0.0  # 429s, each by how much it counts against the request
        self.first_refused_s = math.inf
        self.num_running = 0
        self.queued_s = 0.0
        self.started_s = -1.0
        self.cost_usd = 0.0
        self.cost_bound_usd: float | None = None  # infinity if its reward tells none
        self.tokens = 0
        self.endpoint: Endpoint | None = None
        self.attempt_out: Attempt | None = None
        self.hedge_out: Attempt | None = None
        self.timer: asyncio.TimerHandle | None = None

    def hold(self, attempt: Attempt) -> None:
        """Remembers an attempt in flight, so that `resolve` can end it."""
        if attempt.is_hedge:
            self.hedge_out = attempt
        else:
            self.attempt_out = attempt

    def release(self, attempt: Attempt) -> None:
        if self.attempt_out is attempt:
            self.attempt_out = None
        elif self.hedge_out is attempt:
            self.hedge_out = None

    def resolve(self, rewards: tuple[Reward, ...]) -> None:
        """Delivers the outcome, and ends a waiting retry and attempts that are still in flight."""
        if self.is_done:
            return
        self.is_done = True
        if self.timer is not None:
            self.stop_timer()
        if self.attempt_out is not None:
            self.attempt_out.expire()
        if self.hedge_out is not None:
            self.hedge_out.expire()
        self.resolved(self, rewards)

    def succeed(self, rewards: tuple[Reward, ...], now: float) -> None:
        """Resolves with the reward's result, plus the latency and cost of all attempts."""
        cost_usd, tokens = self._share_of_cost()
        for reward in rewards:
            reward._fill_measures(self.num_calls, now - self.started_s, cost_usd, tokens)
        self.resolve(rewards)

    def fail(self, kind: FailureKind, message: str, now: float, trace: str = "") -> None:
        cost_usd, tokens = self._share_of_cost()
        reward = Reward(
            kind=kind,
            error=message,
            traceback=trace or None,
            attempts=self.num_calls,
            latency_s=self.latency_s(now),
            cost_usd=cost_usd,
            tokens=tokens,
        )
        self.resolve((reward,) * len(self.rollouts))

    def _share_of_cost(self) -> tuple[float, int]:
        """Returns the cost and tokens of each rollout of the call so far, with attempts still in flight."""
        cost_usd, tokens, num_rollouts = self.cost_usd, self.tokens, len(self.rollouts)
        if self.attempt_out is None and self.hedge_out is None:
            return cost_usd / num_rollouts, tokens // num_rollouts
        for attempt in (self.attempt_out, self.hedge_out):
            if attempt is not None:
                drop_odd_usage(attempt.call)
                cost_usd += attempt.call.cost_usd
                tokens += attempt.call.tokens
        return cost_usd / num_rollouts, tokens // num_rollouts

    def latency_s(self, now: float) -> float:
        """Counts from the start of the first attempt, so that waiting for a slot does not count."""
        return now - self.started_s if self.started_s >= 0 else 0.0

    @property
    def waited_s(self) -> float:
        """How long its first call waited to start; 0 if none was made."""
        return max(0.0, self.started_s - self.queued_s) if self.num_calls else 0.0

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
