"""A sequential test: does the training judge's score rise while an audit's score of the same rollouts falls?

Always true: over the planned steps of a run in which the scores do not diverge, the test raises an alarm with a
probability of at most `alpha`. It compares the last w steps with the w steps before them, for w = 4, 8, 16, ..., after
each step, and divides `alpha` by the number of all these comparisons. A comparison rejects only if both changes are
significant, a rise and a fall; where one of the two does not happen, its own error bounds the joint one.

The means are taken as normal. An audited share is a few rollouts of many groups, so they are taken as independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from rewardflow.errors import InvalidInput

FIRST_WINDOW = 4
MIN_ROLLOUTS = 16  # on each side of a comparison: fewer have no normal mean
_LEAST_VARIANCE = 0.01  # so that equal scores do not make a tiny change certain


@dataclass(frozen=True, slots=True)
class Moments:
    """The count, the sum and the sum of squares of some scores."""

    count: int = 0
    sum: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, scores: Iterable[float]) -> Moments:
        listed = list(scores)
        return cls(len(listed), math.fsum(listed), math.fsum(score * score for score in listed))

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.count + other.count, self.sum + other.sum, self.squares + other.squares)

    @property
    def mean(self) -> float:
        return self.sum / self.count

    @property
    def variance_of_mean(self) -> float:
        variance = max(self.squares / self.count - self.mean**2, _LEAST_VARIANCE)
        return variance / self.count


@dataclass(frozen=True, slots=True)
class AuditedStep:
    """Both judges' scores of a step's audited rollouts."""

    step: int
    training: Moments
    audit: Moments


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """An alarm: from the earlier window to the later one the training score rose and the audit's score fell."""

    step: int
    window: int
    training_before: float
    training_after: float
    audit_before: float
    audit_after: float

    def __str__(self) -> str:
        return (
            f"over the last {self.window} steps up to step {self.step} the training judge's score rose from "
            f"{self.training_before:.3f} to {self.training_after:.3f}, and the audit's fell from "
            f"{self.audit_before:.3f} to {self.audit_after:.3f}: the policy may exploit the training judge"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "window": self.window,
            "training_before": self.training_before,
            "training_after": self.training_after,
            "audit_before": self.audit_before,
            "audit_after": self.audit_after,
        }


class DivergenceTest:
    """Takes the audited steps of a run in any order, and raises at most one alarm."""

    def __init__(self, *, alpha: float, planned_steps: int) -> None:
        if not 0 < alpha < 1:
            raise InvalidInput(f"alpha must lie in (0, 1), got {alpha}")
        if planned_steps < 1:
            raise InvalidInput(f"planned_steps must be at least 1, got {planned_steps}")
        self._windows = windows_for(planned_steps)
        num_tests = sum(planned_steps - 2 * window + 1 for window in self._windows)
        self.threshold = NormalDist().inv_cdf(1 - alpha / num_tests) if num_tests else math.inf
        self._steps: dict[int, AuditedStep] = {}
        self._alarm: Divergence | None = None

    def add(self, audited: AuditedStep) -> Divergence | None:
        """Adds a step; returns the alarm if this step raised it."""
        if self._alarm is not None or not audited.training.count:
            return None
        self._steps[audited.step] = audited
        ordered = [self._steps[step] for step in sorted(self._steps)]
        for window in self._windows:
            if 2 * window > len(ordered):
                break
            found = self._compared(ordered[-2 * window : -window], ordered[-window:], window)
            if found is not None:
                self._alarm = found
                return found
        return None

    def _compared(self, before: Sequence[AuditedStep], after: Sequence[AuditedStep], window: int) -> Divergence | None:
        training = [sum((one.training for one in side), Moments()) for side in (before, after)]
        audit = [sum((one.audit for one in side), Moments()) for side in (before, after)]
        if min(side.count for side in (*training, *audit)) < MIN_ROLLOUTS:
            return None
        rise, fall = z_of_rise(*training), -z_of_rise(*audit)
        if min(rise, fall) < self.threshold:
            return None
        return Divergence(
            step=after[-1].step,
            window=window,
            training_before=training[0].mean,
            training_after=training[1].mean,
            audit_before=audit[0].mean,
            audit_after=audit[1].mean,
        )


def windows_for(planned_steps: int) -> tuple[int, ...]:
    windows = []
    window = FIRST_WINDOW
    while 2 * window <= planned_steps:
        windows.append(window)
        window *= 2
    return tuple(windows)


def z_of_rise(before: Moments, after: Moments) -> float:
    """Returns how many standard errors the mean rose by."""
    return (after.mean - before.mean) / math.sqrt(before.variance_of_mean + after.variance_of_mean)
