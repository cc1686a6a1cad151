"""Sums up one step in one small record, so that readers of a run need not load its millions of events.

Always true: the totals count each event of the step once; `scored + failed == rollouts`; money is counted per call,
because retries, hedges and failures cost money, too. Of a limit, `last` is the value at the end of the step, `min` and
`max` are over all values that were set during the step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rewardflow.observe.call_load import CallLoad
from rewardflow.observe.events import (
    REWARD_SOURCE,
    SCHEMA_VERSION,
    BreakerChanged,
    CallEnded,
    GroupDelivered,
    LimitChanged,
    OutageChanged,
    VerdictReached,
)
from rewardflow.observe.histogram import Histogram


class ScoreTotals:
    """The count, sum, minimum, maximum and mean of finite numbers of any sign."""

    __slots__ = ("count", "max", "min", "sum")

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0.0
        self.min: float | None = None
        self.max: float | None = None

    def add(self, value: float) -> None:
        self.count += 1
        self.sum += value
        self.min = value if self.min is None else min(self.min, value)
        self.max = value if self.max is None else max(self.max, value)

    @property
    def mean(self) -> float | None:
        return self.sum / self.count if self.count else None

    def to_json(self) -> dict[str, Any]:
        return {"count": self.count, "sum": self.sum, "min": self.min, "max": self.max, "mean": self.mean}


class LimitTotals:
    """The totals of one learnt limit. A value of None means no limit, and does not count for `min` and `max`."""

    __slots__ = ("changes", "last", "max", "min")

    def __init__(self) -> None:
        self.changes = 0
        self.min: float | None = None
        self.max: float | None = None
        self.last: float | None = None

    def changed(self, value: float | None) -> None:
        self.changes += 1
        self.last = value
        if value is not None:
            self.min = value if self.min is None else min(self.min, value)
            self.max = value if self.max is None else max(self.max, value)

    def to_json(self) -> dict[str, Any]:
        return {"changes": self.changes, "min": self.min, "max": self.max, "last": self.last}


class AccountTotals:
    """The totals of one account: its limits by governor, opened breakers, and outages that made calls wait."""

    __slots__ = ("breakers", "limits", "opened", "outages")

    def __init__(self) -> None:
        self.limits: dict[str, LimitTotals] = {}
        self.opened = 0
        self.breakers: dict[str, str] = {}  # the last state of each endpoint whose breaker changed
        self.outages = 0

    def changed(self, event: LimitChanged | BreakerChanged | OutageChanged) -> None:
        match event:
            case LimitChanged():
                self.limits.setdefault(event.governor, LimitTotals()).changed(event.value)
            case BreakerChanged():
                self.opened += event.state == "open"
                self.breakers[event.endpoint or ""] = event.state
            case OutageChanged():
                self.outages += event.state == "began"

    def to_json(self) -> dict[str, Any]:
        return {
            "limits": {governor: totals.to_json() for governor, totals in self.limits.items()},
            "breakers_opened": self.opened,
            "breakers": dict(self.breakers),
            "outages": self.outages,
        }


class StepTotals:
    """The running totals of one step and one source. `to_json()` is a line of steps.jsonl."""

    def __init__(self, step: int, source: str = REWARD_SOURCE) -> None:
        self.step = step
        self.source = source
        self.groups = 0
        self.scored = 0
        self.failed: Counter[str] = Counter()
        self.imputed = 0
        self.cached = 0
        self.calls = 0
        self.retries = 0
        self.hedges = 0
        self.outcomes: Counter[str] = Counter()
        self.in_flight = CallLoad()
        self.accounts: dict[str, AccountTotals] = {}
        self.cost_usd = 0.0
        self.tokens = 0
        self.cached_tokens = 0
        self.cache_saved_usd = 0.0
        self.score = ScoreTotals()
        self.components: dict[str, ScoreTotals] = {}
        self.latency_s = Histogram()
        self.waited_s = Histogram()
        self.first_submitted_s: float | None = None
        self.first_delivered_s: float | None = None
        self.last_delivered_s: float | None = None

    def carry_over(self, earlier: Mapping[str, Any]) -> None:
        """Adds the calls and costs of an earlier session; its verdicts come again by replay, its calls do not."""
        self.calls += earlier["calls"]
        self.retries += earlier["retries"]
        self.hedges += earlier["hedges"]
        self.outcomes.update(earlier.get("outcomes", {}))
        self.cost_usd += earlier["cost_usd"]
        self.tokens += earlier["tokens"]
        self.cached_tokens += earlier.get("cached_tokens", 0)
        self.cache_saved_usd += earlier.get("cache_saved_usd", 0.0)

    @property
    def rollouts(self) -> int:
        return self.scored + self.failed.total()

    def call_ended(self, event: CallEnded) -> None:
        self.calls += 1
        if event.is_hedge:
            self.hedges += 1
        elif event.attempt > 1:
            self.retries += 1
        self.outcomes[event.outcome] += 1
        self.in_flight.add(event.started_s, event.started_s + event.latency_s)
        self.cost_usd += event.cost_usd
        self.tokens += event.tokens
        self.cached_tokens += event.cached_tokens
        self.cache_saved_usd += event.cache_saved_usd

    def account_changed(self, event: LimitChanged | BreakerChanged | OutageChanged) -> None:
        self.accounts.setdefault(event.account, AccountTotals()).changed(event)

    def verdict(self, event: VerdictReached) -> None:
        if event.value is None:
            self.failed[event.kind or "user_error"] += 1
        else:
            self.scored += 1
            self.score.add(event.value)
        self.imputed += event.imputed
        for name, value in event.components.items():
            if value is not None and math.isfinite(value):
                self.components.setdefault(name, ScoreTotals()).add(value)
        self.cached += event.cached
        if event.attempts and not event.cached:  # verdicts without a call would make the service look fast
            _add_time(self.latency_s, event.latency_s)
            _add_time(self.waited_s, event.waited_s)

    def group(self, event: GroupDelivered) -> None:
        self.groups += 1
        self.first_submitted_s = _earliest(self.first_submitted_s, event.first_submitted_s)
        self.first_delivered_s = _earliest(self.first_delivered_s, event.at_s)
        self.last_delivered_s = _latest(self.last_delivered_s, event.at_s)

    def to_json(self) -> dict[str, Any]:
        return {
            "v": SCHEMA_VERSION,
            "step": self.step,
            "source": self.source,
            "groups": self.groups,
            "rollouts": self.rollouts,
            "scored": self.scored,
            "failed": dict(self.failed),
            "imputed": self.imputed,
            "cached": self.cached,
            "calls": self.calls,
            "retries": self.retries,
            "hedges": self.hedges,
            "outcomes": dict(self.outcomes),
            "in_flight": self.in_flight.to_json(),
            "accounts": {name: totals.to_json() for name, totals in self.accounts.items()},
            "cost_usd": self.cost_usd,
            "tokens": self.tokens,
            "cached_tokens": self.cached_tokens,
            "cache_saved_usd": self.cache_saved_usd,
            "score": self.score.to_json(),
            "components": {name: totals.to_json() for name, totals in self.components.items()},
            "latency_s": self.latency_s.to_json(),
            "waited_s": self.waited_s.to_json(),
            "first_submitted_s": self.first_submitted_s,
            "first_delivered_s": self.first_delivered_s,
            "last_delivered_s": self.last_delivered_s,
        }


def _add_time(histogram: Histogram, time_s: float) -> None:
    """Adds a time; ignores an impossible one, because totals must not fail on an event."""
    if math.isfinite(time_s) and time_s >= 0:
        histogram.add(time_s)


def _earliest(one_s: float | None, other_s: float) -> float:
    return other_s if one_s is None else min(one_s, other_s)


def _latest(one_s: float | None, other_s: float) -> float:
    return other_s if one_s is None else max(one_s, other_s)
