"""When a run has learnt: the reward that its last steps must have in the mean.

Always true: one lucky step does not reach the target; the steps to it include all of those that the mean is taken over.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

TARGET = 0.9
WINDOW = 10  # steps


def reached_step(scores: Sequence[float]) -> int | None:
    """Returns after how many steps the mean score of the last `WINDOW` steps was at the target; None: never."""
    ends = range(WINDOW, len(scores) + 1)
    return next((end for end in ends if fmean(scores[end - WINDOW : end]) >= TARGET), None)


def final_reward(scores: Sequence[float]) -> float:
    return fmean(scores[-WINDOW:])
