"""Measures how long one of verl's own modes waited for a step's verdicts, and counts the groups that left meanwhile.

Always true: a wait is exposed only while everything that verl asked for is generated, so that the device had nothing
to do.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rewardflow.adapters.verl.accounting.group_report import GroupReport
from rewardflow.adapters.verl.accounting.step_metrics import VerlStepRecord
from rewardflow.flow.device_usage import UsageTotals


class SampledStep:
    """A step as the sampler sees it. `is_colocated` is False where other devices generate, and these idle meanwhile."""

    def __init__(self, step: int, *, group_size: int, is_colocated: bool = True) -> None:
        self.record = VerlStepRecord.of(step, time.monotonic())
        self.num_samples = 0
        self._group_size = group_size
        self._is_colocated = is_colocated
        self._sampling_s = 0.0
        self._exposed_s = 0.0

    def waited(self, seconds: float, *, generated_for_s: float | None) -> None:
        """Counts a wait for verdicts, as far as everything under way was generated; None means that some is not."""
        self._exposed_s += min(seconds, generated_for_s or 0.0)

    def sampled(self, seconds: float, tags: Iterable[Mapping[str, Any]]) -> None:
        """Counts a batch, which verl's buffer took `seconds` to return."""
        self.num_samples += 1
        self._sampling_s += seconds
        self.record.rows_trained(tags)

    def left(self, groups: Sequence[GroupReport], *, dropped: str | None = None) -> None:
        """Counts groups that were trained or, for the reason in `dropped`, were not."""
        for group in groups:
            self.record.group_left(group, not_generated=max(0, self._group_size - group.size), dropped=dropped)

    def metrics(self, *, outstanding_s: float) -> dict[str, float]:
        """Returns the numbers for verl's loggers; verdicts were outstanding for `outstanding_s` since the last step."""
        generating_s = max(0.0, self._sampling_s - self._exposed_s)
        usage = UsageTotals(
            busy_s={"generate": generating_s} if self._is_colocated else {},
            idle_s={"reward": self._exposed_s} | ({} if self._is_colocated else {"generation": generating_s}),
            hidden_s=max(0.0, outstanding_s - self._exposed_s),
        )
        return self.record.metrics(usage)
