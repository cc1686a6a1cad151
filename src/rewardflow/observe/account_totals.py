"""Sums up what an account's limits and breakers did during a step, in a record of constant size.

Always true: every change counts once; `last` is the value at the end of the step, `min` and `max` are over all values
that were set during the step.
"""

from __future__ import annotations

from typing import Any

from rewardflow.observe.events import BreakerChanged, LimitChanged, OutageChanged


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
