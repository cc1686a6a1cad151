"""A sequential test: does the training judge's score rise while an audit's score of the same rollouts falls?

Always true: over the planned steps of a run in which the scores do not diverge, the test raises an alarm with a
probability of at most `alpha`. It compares the last w steps with the w steps before them, for w = 4, 8, 16, ..., after
each step, and divides `alpha` by the number of all these comparisons. A comparison rejects only if both changes are
significant, a rise and a fall; where one of the two does not happen, its own error bounds the joint one.

The rollouts of a step are not independent: they share prompts, and one step's prompts are harder than another's. So the
error of a mean is taken from how much the means of successive steps differ, as far as the run has come, or from the
spread of the scores if that is larger. The steps are taken as independent of each other, and few steps make the test
careful: its statistic has Student's distribution, with as many degrees of freedom as the differences give.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Any

from rewardflow.errors import InvalidInput

FIRST_WINDOW = 4
MIN_ROLLOUTS = 16  # on each side of a comparison: fewer have no normal mean
_FREEDOM = 2 / 3  # degrees of freedom that a difference of successive steps is worth: two of them share a step
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

    @classmethod
    def total(cls, parts: Iterable[Moments]) -> Moments:
        count, total, squares = 0, 0.0, 0.0
        for one in parts:
            count, total, squares = count + one.count, total + one.sum, squares + one.squares
        return cls(count, total, squares)

    @property
    def mean(self) -> float:
        return self.sum / self.count

    @property
    def variance(self) -> float:
        return max(self.squares / self.count - self.mean**2, _LEAST_VARIANCE)


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
        if self._alarm is not None or not audited.training.count or not audited.audit.count:
            return None
        self._steps[audited.step] = audited
        ordered = [self._steps[step] for step in sorted(self._steps)]
        for window in self._windows:
            if 2 * window > len(ordered):
                break
            found = self._compared(ordered, window)
            if found is not None:
                self._alarm = found
                return found
        return None

    def _compared(self, steps: Sequence[AuditedStep], window: int) -> Divergence | None:
        before, after = steps[-2 * window : -window], steps[-window:]
        training = _Change(Moments.total(one.training for one in before), Moments.total(one.training for one in after))
        audit = _Change(Moments.total(one.audit for one in before), Moments.total(one.audit for one in after))
        if min(side.count for one in (training, audit) for side in (one.before, one.after)) < MIN_ROLLOUTS:
            return None
        if training.rise <= 0 or audit.rise >= 0:
            return None  # most comparisons end here, before anything costly
        parts = (steps[:-window], after)
        rise = training.deviate([[one.training for one in part] for part in parts])
        fall = -audit.deviate([[one.audit for one in part] for part in parts])
        if min(rise, fall) < self.threshold:
            return None
        return Divergence(
            step=steps[-1].step,
            window=window,
            training_before=training.before.mean,
            training_after=training.after.mean,
            audit_before=audit.before.mean,
            audit_after=audit.after.mean,
        )


@dataclass(frozen=True, slots=True)
class _Change:
    """One judge's change from one window to the next."""

    before: Moments
    after: Moments

    @property
    def rise(self) -> float:
        return self.after.mean - self.before.mean

    def deviate(self, parts: Sequence[Sequence[Moments]]) -> float:
        """Returns by how many standard errors the mean rose, as a normal deviate.

        `parts` are all steps up to the later window, and its own: the difference between the two parts is what is
        tested, and no error.
        """
        differences = [squared_difference(*both) for part in parts for both in pairwise(part)]
        spread = max(Moments.total((self.before, self.after)).variance, statistics.fmean(differences))
        error = math.sqrt(spread * (1 / self.before.count + 1 / self.after.count))
        return normal_deviate(self.rise / error, _FREEDOM * len(differences))


def windows_for(planned_steps: int) -> tuple[int, ...]:
    windows = []
    window = FIRST_WINDOW
    while 2 * window <= planned_steps:
        windows.append(window)
        window *= 2
    return tuple(windows)


def squared_difference(step: Moments, next_step: Moments) -> float:
    """Returns the variance of a score that two successive steps tell, as if their rollouts were independent.

    It is larger than the variance of the scores if the rollouts of a step have something in common. A slow change of
    the mean hardly adds to it.
    """
    return (next_step.mean - step.mean) ** 2 / (1 / step.count + 1 / next_step.count)


def normal_deviate(t: float, freedom: float) -> float:
    """Returns the normal deviate that is as unlikely as `t` under Student's distribution (Wallace, 1959)."""
    scale = (8 * freedom + 1) / (8 * freedom + 3)
    return math.copysign(scale * math.sqrt(freedom * math.log1p(t * t / freedom)), t)
