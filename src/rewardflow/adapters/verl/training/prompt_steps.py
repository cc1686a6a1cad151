"""Which prompts belong to which step.

Always true: a step has its own prompts, told in advance; steps leave in the order they came, so that step s is trained
on what was generated for it and on nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from rewardflow.errors import FlowError


@dataclass(frozen=True, slots=True)
class StepPrompts:
    """`step` as verl counts, from 1."""

    step: int
    uids: tuple[str, ...]


class OpenSteps:
    """Steps that are generated or judged."""

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
    """The open steps of a run that goes on, from the prompts saved with it, oldest first; the last may be short."""
    return [
        StepPrompts(first + number, tuple(uids_by_age[start : start + per_step]))
        for number, start in enumerate(range(0, len(uids_by_age), per_step))
    ]
