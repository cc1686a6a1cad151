"""What judging took in one step of one of verl's own modes, and what became of the groups that left in it.

Always true: waiting is exposed only while everything that was asked for is generated, so the device had nothing to do;
a group that leaves is counted once, as trained or with the reason why not.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rewardflow.adapters.verl.step_metrics import StepAccount
from rewardflow.adapters.verl.training.group_board import GroupReport
from rewardflow.flow.device_usage import UsageTotals


class JudgedStep:
    """Told by the sampler. Where verl generates on devices of their own, the trainer's are idle meanwhile."""

    def __init__(self, step: int, *, group_size: int, is_colocated: bool = True) -> None:
        self.account = StepAccount(step, time.monotonic())
        self.num_samples = 0
        self._group_size = group_size
        self._is_colocated = is_colocated
        self._sampling_s = 0.0
        self._exposed_s = 0.0

    def waited(self, seconds: float, *, generated_for_s: float | None) -> None:
        """For verdicts, as far as all that is under way has been generated for that long; None: some is not."""
        self._exposed_s += min(seconds, generated_for_s or 0.0)

    def sampled(self, seconds: float, tags: Iterable[Mapping[str, Any]]) -> None:
        """verl's buffer gave a batch, after so long."""
        self.num_samples += 1
        self._sampling_s += seconds
        for tag in tags:
            self.account.versions.append(int(tag["min_global_steps"]))
            self.account.response_tokens.append(int(tag["response_len"]))

    def left(self, groups: Sequence[GroupReport], *, dropped: str | None = None) -> None:
        self.account.groups += groups
        self.account.not_generated += sum(max(0, self._group_size - group.size) for group in groups)
        if dropped is not None:
            self.account.dropped[dropped] += len(groups)

    def metrics(self, *, verdicts_out_s: float) -> dict[str, float]:
        """For verl's loggers; some verdict was out for `verdicts_out_s` since the last step's were taken."""
        generating_s = max(0.0, self._sampling_s - self._exposed_s)
        usage = UsageTotals(
            busy_s={"generate": generating_s} if self._is_colocated else {},
            idle_s={"reward": self._exposed_s} | ({} if self._is_colocated else {"generation": generating_s}),
            hidden_s=max(0.0, verdicts_out_s - self._exposed_s),
        )
        return self.account.metrics(usage)
