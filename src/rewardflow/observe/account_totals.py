"""What an account's limits and breakers did during a step, in a record that does not grow with how often they moved.

Always true: every change is counted once; `last` is how the step left it, `min` and `max` are over what it was set to.
"""

from __future__ import annotations

from typing import Any

from rewardflow.observe.events import BreakerChanged, LimitChanged, OutageChanged


class LimitTotals:
    """Of one learnt limit. None is no limit at all, and no number to take an extreme of."""

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
    """Of one account: its limits by governor, how often breakers opened, how often calls had to wait for an outage."""

    __slots__ = ("breakers", "limits", "opened", "outages")

    def __init__(self) -> None:
        self.limits: dict[str, LimitTotals] = {}
        self.opened = 0
        self.breakers: dict[str, str] = {}  # the last state of each endpoint whose breaker moved
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
