"""A test for a judge that changed: does it score a fixed set of answers otherwise than at the start?

Always true: over all planned probings of a judge that does not change, the test raises an alarm with a probability of
at most `alpha`, also if the judge is noisy. The set is scored twice at the start. For a judge that did not change, a
later score is as far from the first one as the second one is, by symmetry; so of the answers where the two distances
differ, the later one is larger in half of the cases. This is a sign test, and `alpha` is divided by the number of
probings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rewardflow.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbingResult:
    """One probing: how many of the answers that could tell moved away, and how likely that is by chance."""

    moved: int
    told: int
    mean_before: float
    mean_now: float
    p_value: float
    is_alarm: bool


class JudgeChangeTest:
    """Compares later scores of the same answers with two rounds of scores at the start; None is a failed verdict."""

    def __init__(
        self, first: Sequence[float | None], second: Sequence[float | None], *, alpha: float, planned_probings: int
    ) -> None:
        if len(first) != len(second):
            raise InvalidInput(f"both rounds must score the same answers, got {len(first)} and {len(second)}")
        self._rounds = list(zip(first, second, strict=True))
        self._threshold = alpha / max(1, planned_probings)

    def compare(self, scores: Sequence[float | None]) -> ProbingResult | None:
        """Returns the result of one probing; None if no answer has all three scores."""
        known = [
            (first, second, now)
            for (first, second), now in zip(self._rounds, scores, strict=True)
            if first is not None and second is not None and now is not None
        ]
        if not known:
            return None
        differences = [abs(now - first) - abs(second - first) for first, second, now in known]
        moved, told = sum(one > 0 for one in differences), sum(one != 0 for one in differences)
        p_value = sign_test(moved, told)
        return ProbingResult(
            moved=moved,
            told=told,
            mean_before=math.fsum(first for first, _, _ in known) / len(known),
            mean_now=math.fsum(now for _, _, now in known) / len(known),
            p_value=p_value,
            is_alarm=p_value <= self._threshold,
        )


def sign_test(positive: int, count: int) -> float:
    """Returns how likely at least this many of `count` coins are heads."""
    return sum(math.comb(count, heads) for heads in range(positive, count + 1)) / (1 << count)
