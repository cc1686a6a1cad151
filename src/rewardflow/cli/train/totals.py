"""Adds up the steps of a run, for its live view and its closing report.

Always true: a step is counted once; of each step only its score and its warnings are kept.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from rewardflow.flow.reports import StepReport

_RECENT_STEPS = 20


@dataclass(slots=True)
class TrainTotals:
    """Totals over the reports that `add` took so far."""

    num_steps: int = 0
    duration_s: float = 0.0
    busy_s: Counter[str] = field(default_factory=Counter)
    idle_s: Counter[str] = field(default_factory=Counter)
    hidden_s: float = 0.0
    scores: list[float] = field(default_factory=list)  # of the steps with a score
    num_scored: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    first_errors: dict[str, str] = field(default_factory=dict)  # of each kind of failure
    dropped: Counter[str] = field(default_factory=Counter)
    staleness_max: int | None = None
    last: StepReport | None = None
    warnings: list[str] = field(default_factory=list)  # of all steps, in order
    _recent_s: list[float] = field(default_factory=list)

    def add(self, report: StepReport) -> None:
        self.num_steps += 1
        self.duration_s += report.duration_s
        self._recent_s = [*self._recent_s, report.duration_s][-_RECENT_STEPS:]
        self.busy_s.update(report.usage.busy_s)
        self.idle_s.update(report.usage.idle_s)
        self.hidden_s += report.usage.hidden_s
        if report.score_mean is not None:
            self.scores.append(report.score_mean)
        self.num_scored += report.num_scored
        self.failed.update(report.failed)
        self.first_errors = {**report.first_errors, **self.first_errors}
        self.dropped.update(report.dropped)
        if report.staleness_max is not None:
            self.staleness_max = max(self.staleness_max or 0, report.staleness_max)
        self.warnings += report.warnings
        self.last = report

    @property
    def mean_step_s(self) -> float | None:
        return self.duration_s / self.num_steps if self.num_steps else None

    @property
    def busy_share(self) -> float | None:
        return self.busy_s.total() / self.duration_s if self.duration_s else None

    @property
    def failed_share(self) -> float:
        num_verdicts = self.num_scored + self.failed.total()
        return self.failed.total() / num_verdicts if num_verdicts else 0.0

    @property
    def exposed_s(self) -> float:
        return self.idle_s["reward"]

    def left_s(self, num_steps: int) -> float | None:
        """Estimates how long this many more steps will take, if they are like the latest."""
        return num_steps * sum(self._recent_s) / len(self._recent_s) if self._recent_s else None

    def to_json(self) -> dict[str, Any]:
        return {
            "steps": self.num_steps,
            "duration_s": self.duration_s,
            "mean_step_s": self.mean_step_s,
            "busy_share": self.busy_share,
            "busy_s": dict(self.busy_s),
            "idle_s": dict(self.idle_s),
            "exposed_s": self.exposed_s,
            "hidden_s": self.hidden_s,
            "score_first": self.scores[0] if self.scores else None,
            "score_last": self.scores[-1] if self.scores else None,
            "scored": self.num_scored,
            "failed": dict(self.failed),
            "failed_share": self.failed_share,
            "first_errors": dict(self.first_errors),
            "dropped": dict(self.dropped),
            "staleness_max": self.staleness_max,
            "warnings": list(self.warnings),
        }
