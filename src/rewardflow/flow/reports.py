"""What a step was like, as one record: a line of metrics.jsonl, and what displays and benchmarks read.

Always true: seconds by label add up to the step's duration; groups asked for are trained, dropped or in reserve.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewardflow.events import SCHEMA_VERSION
from rewardflow.flow.records import UpdateReport
from rewardflow.flow.usage import UsageTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """From the end of the step before to the publishing of this one."""

    step: int
    version: int  # published at its end
    ended_s: float
    duration_s: float
    first_update_s: float | None  # from the step's start to its first optimizer step
    usage: UsageTotals  # of the trainer's device
    updates: tuple[UpdateReport, ...]
    num_groups: int  # trained
    num_reserves_used: int
    dropped: Mapping[str, int]
    num_scored: int
    failed: Mapping[str, int]
    score_mean: float | None
    component_means: Mapping[str, float]
    response_tokens_mean: float | None
    staleness_mean: float | None
    staleness_max: int | None
    reward_latency_mean_s: float | None
    cost_usd: float

    @property
    def metrics(self) -> dict[str, float]:
        """The updates' metrics, each the mean over the updates that have it."""
        names = dict.fromkeys(name for update in self.updates for name in update.metrics)
        return {name: mean_of(u.metrics[name] for u in self.updates if name in u.metrics) or 0.0 for name in names}

    def to_json(self) -> dict[str, Any]:
        """Flat where a plot would want it."""
        return {
            "v": SCHEMA_VERSION,
            "step": self.step,
            "source": "train",
            "version": self.version,
            "ended_s": self.ended_s,
            "duration_s": self.duration_s,
            "first_update_s": self.first_update_s,
            "busy_s": dict(self.usage.busy_s),
            "idle_s": dict(self.usage.idle_s),
            "exposed_s": self.usage.exposed_s,
            "hidden_s": self.usage.hidden_s,
            "num_updates": len(self.updates),
            "grad_norm": mean_of(update.grad_norm for update in self.updates),
            "lr": self.updates[-1].lr if self.updates else None,
            "num_groups": self.num_groups,
            "num_reserves_used": self.num_reserves_used,
            "dropped": dict(self.dropped),
            "num_scored": self.num_scored,
            "failed": dict(self.failed),
            "score_mean": self.score_mean,
            "component_means": dict(self.component_means),
            "response_tokens_mean": self.response_tokens_mean,
            "staleness_mean": self.staleness_mean,
            "staleness_max": self.staleness_max,
            "reward_latency_mean_s": self.reward_latency_mean_s,
            "cost_usd": self.cost_usd,
            **self.metrics,
            "mini_batches": [dict(update.metrics) for update in self.updates],
        }


def mean_of(values: Iterable[float]) -> float | None:
    numbers: Sequence[float] = list(values)
    return sum(numbers) / len(numbers) if numbers else None
