"""Counts a client's requests and verdicts.

Always true: a verdict is counted once, together with its cost, when its rollout is done here. Calls that an earlier
session of the run made are not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from rewardflow.types import Reward


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStatistics:
    """One client's requests and verdicts. For the agent's own figures see `await host_statistics()`."""

    submitted: int
    out: int
    scored: int
    failed: Mapping[str, int]
    imputed: int
    cached: int
    calls: int  # made for the verdicts received so far
    retries: int
    cost_usd: float
    tokens: int
    reconnects: int


class ClientCounts:
    """Counts up, from the first rollout to the last verdict."""

    def __init__(self) -> None:
        self._submitted = self._scored = self._imputed = self._cached = 0
        self._calls = self._retries = self._tokens = 0
        self._failed: Counter[str] = Counter()
        self._cost_usd = 0.0

    def asked(self, num_rollouts: int) -> None:
        self._submitted += num_rollouts

    def ended(self, reward: Reward) -> None:
        if reward.value is None:
            self._failed[reward.kind or "user_error"] += 1
        else:
            self._scored += 1
        self._imputed += reward.imputed
        self._cached += reward.cached
        if not reward.cached:  # an earlier session made and counted the calls of a cached verdict
            self._calls += reward.attempts
            self._retries += max(0, reward.attempts - 1)
        self._cost_usd += reward.cost_usd
        self._tokens += reward.tokens

    def statistics(self, *, out: int, reconnects: int) -> ClientStatistics:
        return ClientStatistics(
            submitted=self._submitted,
            out=out,
            scored=self._scored,
            failed=dict(self._failed),
            imputed=self._imputed,
            cached=self._cached,
            calls=self._calls,
            retries=self._retries,
            cost_usd=self._cost_usd,
            tokens=self._tokens,
            reconnects=reconnects,
        )
