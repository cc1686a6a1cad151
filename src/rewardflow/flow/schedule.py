"""Says when work may start: every schedule is a value of one record, and one loop runs them all.

Always true: every `Schedule` that exists can be run; a version v generates step s only if s - v <= max_staleness,
because the loop admits a step only then; it never discards rollouts afterwards.

    stream        max_staleness
    batch         0              synchronous
    mini_batch    0              mini-batch pipeline
    batch         1              one-step off-policy
    mini_batch    1              both
    micro_batch   0, 1, ..       streaming gradients
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rewardflow.errors import InvalidInput

Stream = Literal["batch", "mini_batch", "micro_batch"]
OldLogProbs = Literal["always", "with_several_updates", "never"]  # when they are computed
Order = Literal["fixed", "completion"]
Placement = Literal["colocated", "separate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How much is trained at a time, how far generation may run ahead, and what happens to groups that drop out."""

    groups_per_step: int  # prompts per step, each with a group of rollouts
    mini_batches: int = 1  # optimizer steps per step; must divide `groups_per_step`
    stream: Stream = "batch"  # how much must be scored before training on it starts
    max_staleness: int = 0  # how many steps generation may run ahead of the weights
    # order in which a step's groups are trained: that of their prompts, or `completion`, that of their verdicts, which
    # trains slowly judged groups, often those with long answers, always last
    order: Order = "fixed"
    epochs: int = 1  # passes over a step's batch; more than one needs `stream: batch`
    placement: Placement = "colocated"  # whether generation and training share devices
    min_group: int = 2  # a group with fewer verdicts is dropped
    drop_equal_scores: bool = False  # drop groups whose scores are all equal
    refill: int = 0  # reserve groups generated with each step, judged only when a group is dropped
    refill_rounds: int = 0  # how many more rounds of reserve groups may follow if these do not suffice
    # cancel the running calls when the device has waited this many seconds without a completed group; null: never
    straggler_s: float | None = None

    def __post_init__(self) -> None:
        for name, at_least in _AT_LEAST.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
                raise InvalidInput(f"{name} must be a whole number of at least {at_least}, got {name}={value!r}")
        for name, allowed in (("stream", Stream), ("order", Order), ("placement", Placement)):
            if getattr(self, name) not in get_args(allowed):
                raise InvalidInput(f"{name} must be one of {', '.join(get_args(allowed))}, got {getattr(self, name)!r}")
        if self.groups_per_step % self.mini_batches:
            raise InvalidInput(
                "groups_per_step must be divisible by mini_batches, "
                f"got groups_per_step={self.groups_per_step}, mini_batches={self.mini_batches}"
            )
        if self.epochs > 1 and self.stream != "batch":
            raise InvalidInput(
                "several epochs need the whole batch before the first one: they need stream=batch, "
                f"got epochs={self.epochs}, stream={self.stream}"
            )
        self._check_refill()
        if self.straggler_s is not None and not (math.isfinite(self.straggler_s) and self.straggler_s > 0):
            raise InvalidInput(f"straggler_s must be a positive number of seconds, got {self.straggler_s!r}")

    def _check_refill(self) -> None:
        if self.refill_rounds and not self.refill:
            raise InvalidInput(
                "refill_rounds repeat refill, so refill must be at least 1, "
                f"got refill={self.refill}, refill_rounds={self.refill_rounds}"
            )
        if self.refill_rounds and self.order == "fixed" and self.stream != "batch":
            raise InvalidInput(
                "refill_rounds end with a step's first update, whose time depends on the verdicts, so they need "
                f"stream=batch or order=completion, got refill_rounds={self.refill_rounds}, stream={self.stream}, "
                f"order={self.order}"
            )

    @property
    def groups_per_mini_batch(self) -> int:
        return self.groups_per_step // self.mini_batches

    @property
    def max_steps_open(self) -> int:
        """The number of steps that may be between admission and publishing at the same time."""
        return self.max_staleness + 1

    @property
    def has_several_updates(self) -> bool:
        """Whether a step has several updates. With one, the old policy is the current one and needs no extra pass."""
        return self.mini_batches * self.epochs > 1

    def may_generate(self, step: int, version: int) -> bool:
        """Whether a step may be generated by this version of the weights."""
        return step - version <= self.max_staleness

    def changed(self, **changes: Any) -> Schedule:
        return dataclasses.replace(self, **changes)


_AT_LEAST = {
    "groups_per_step": 1,
    "mini_batches": 1,
    "max_staleness": 0,
    "epochs": 1,
    "min_group": 1,
    "refill": 0,
    "refill_rounds": 0,
}
