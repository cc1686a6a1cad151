"""Decides which prompts belong to which step, and in which order a step's groups are trained.

Always true: steps leave in the order in which they were opened, so step s is trained on exactly what was generated for
it; its groups leave in the order in which they were judged, in whole mini-batches, of which only the step's last may be
short; every rank gets its share of the first mini-batch before its share of the second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from rewardflow.errors import FlowError

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class StepPrompts:
    """`step` as verl counts, from 1."""

    step: int
    uids: tuple[str, ...]


class StepQueue:
    """The steps that are being generated or judged, oldest first."""

    def __init__(self) -> None:
        self._steps: deque[StepPrompts] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def uids(self) -> list[str]:
        return [uid for prompts in self._steps for uid in prompts.uids]

    def open(self, step: int, uids: Sequence[str]) -> None:
        if self._steps and step != self._steps[-1].step + 1:
            raise FlowError(f"steps are opened in order, got step {step} after {self._steps[-1].step}")
        self._steps.append(StepPrompts(step, tuple(uids)))

    def take(self, step: int) -> StepPrompts:
        if not self._steps or self._steps[0].step != step:
            first = self._steps[0].step if self._steps else "none"
            raise FlowError(f"steps are trained in order, got step {step}, and the first open one is {first}")
        return self._steps.popleft()


def restored_steps(uids_by_age: Sequence[str], *, first: int, per_step: int) -> list[StepPrompts]:
    """Cuts the prompts of a checkpoint, oldest first, into the steps that were open. The last may be short."""
    return [
        StepPrompts(first + number, tuple(uids_by_age[start : start + per_step]))
        for number, start in enumerate(range(0, len(uids_by_age), per_step))
    ]


def num_ready(num_judged: int, *, taken: int, per_update: int, total: int) -> int:
    """Returns how many of a step's `total` groups may have left once whole mini-batches leave; `taken` have already."""
    return total if num_judged >= total else num_judged - (num_judged - taken) % per_update


def interleaved(mini_batches: Sequence[Sequence[Row]], *, ranks: int) -> list[Row]:
    """Joins the rows of several mini-batches to one batch, which verl cuts by ranks first and by mini-batches then.

    Each is balanced over the ranks already, so its length is a multiple of their number.
    """
    return [
        row
        for rank in range(ranks)
        for rows in mini_batches
        for row in rows[rank * len(rows) // ranks : (rank + 1) * len(rows) // ranks]
    ]
