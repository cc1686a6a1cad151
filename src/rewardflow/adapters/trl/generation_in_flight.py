"""A generation whose verdicts are out: what TRL computed before it asked for rewards, kept so that TRL can go on.

Always true: what is kept is computed once, by the weights that generated; running TRL's method again with it gives the
same batch as running it once. A generation can be saved and loaded if it holds tensors and plain values only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rewardflow.reward.batch_function import PendingBatch

Computed = tuple[Any, ...]


class RewardsAreOut(Exception):
    """Leaves TRL's method at its reward calculation; the generation goes on there later."""


@dataclass(slots=True)
class Generation:
    """One generation batch of one process."""

    prompts: list[Any]
    step: int  # the optimizer step that trains on it first
    num_trained_before: int  # generation batches whose training the generating weights had seen
    completions: Computed | None = None  # what TRL's `_generate` returned
    log_probs: list[Computed] = field(default_factory=list)  # of the generating policy, then of the reference
    pending: list[PendingBatch] = field(default_factory=list)  # one for each of the agent's rewards
    failed_rows: torch.Tensor | None = None  # of all processes; set with the verdicts
    _num_log_probs_used: int = 0

    def rewind(self) -> None:
        """Prepares for TRL's method to run from its start."""
        self._num_log_probs_used = 0

    def completions_or(self, generate: Callable[[], Computed]) -> Computed:
        if self.completions is None:
            self.completions = generate()
        return self.completions

    def log_probs_or(self, compute: Callable[[], Computed]) -> Computed:
        """Returns the next log-probs in the order in which TRL asks for them."""
        place = self._num_log_probs_used
        if place == len(self.log_probs):
            self.log_probs.append(compute())
        self._num_log_probs_used += 1
        return self.log_probs[place]

    def cancel(self) -> None:
        for batch in self.pending:
            batch.cancel()

    def saved(self) -> dict[str, Any] | None:
        """Returns what a checkpoint keeps; None if it holds objects, such as images, that no checkpoint can keep."""
        state = {
            "prompts": self.prompts,
            "step": self.step,
            "num_trained_before": self.num_trained_before,
            "completions": self.completions,
            "log_probs": self.log_probs,
        }
        return state if is_plain(state) else None

    @classmethod
    def loaded(cls, state: dict[str, Any]) -> Generation:
        return cls(**state)


def is_plain(value: Any) -> bool:
    """Whether `torch.load` can read a value back without running code from the file."""
    if isinstance(value, dict):
        return all(is_plain(one) for pair in value.items() for one in pair)
    if isinstance(value, list | tuple):
        return all(is_plain(one) for one in value)
    return value is None or type(value) in (bool, int, float, str, torch.Tensor)


def same_prompts(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return list(one) == list(other)
