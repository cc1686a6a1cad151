"""Holds the report of a step: a line of metrics.jsonl, also read by displays and benchmarks.

Always true: seconds by label add up to the step's duration; every requested group is trained, dropped or in reserve.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rewardflow.flow.device_usage import UsageTotals
from rewardflow.flow.mini_batch_bias import MiniBatchBias
from rewardflow.flow.quantiles import Quantiles
from rewardflow.flow.records import UpdateReport
from rewardflow.observe.events import SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """The figures of a step, from the end of the previous step to its own publishing."""

    step: int
    version: int  # published at the step's end
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
    first_errors: Mapping[str, str] = field(default_factory=dict)  # of each kind of failure; not in metrics.jsonl
    score_mean: float | None  # without greedy baselines
    baseline_score_mean: float | None = None
    component_means: Mapping[str, float]
    response_tokens_mean: float | None
    staleness_mean: float | None
    staleness_max: int | None
    reward_latency_mean_s: float | None
    cost_usd: float
    num_calls: int = 0  # reward calls that began during the step, for whichever step
    num_retries: int = 0  # among these calls
    generated_tokens_per_s: float | None = None
    trained_tokens_per_s: float | None = None
    reward_kl_mean: float | None = None  # over scored rollouts, if the reward has a KL penalty
    reward_kl_coef: float | None = None  # the coefficient of that penalty
    memory_peak_bytes: int | None = None  # of this process, so far
    warnings: tuple[str, ...] = ()  # about this step's figures
    mini_batch_latency_s: tuple[Quantiles, ...] = ()  # latencies of the verdicts in each mini-batch
    mini_batch_bias: MiniBatchBias = field(default_factory=MiniBatchBias)

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of all updates, combined."""
        return combined_metrics([update.metrics for update in self.updates])

    @property
    def by_staleness(self) -> dict[int, dict[str, float]]:
        """The same, separately for each staleness."""
        found = sorted({staleness for update in self.updates for staleness in update.by_staleness})
        return {
            staleness: combined_metrics(
                [update.by_staleness[staleness] for update in self.updates if staleness in update.by_staleness]
            )
            for staleness in found
        }

    def to_json(self) -> dict[str, Any]:
        """Returns a line of metrics.jsonl, flat where plots need it."""
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
            "baseline_score_mean": self.baseline_score_mean,
            "component_means": dict(self.component_means),
            "response_tokens_mean": self.response_tokens_mean,
            "staleness_mean": self.staleness_mean,
            "staleness_max": self.staleness_max,
            "reward_latency_mean_s": self.reward_latency_mean_s,
            "cost_usd": self.cost_usd,
            "num_calls": self.num_calls,
            "num_retries": self.num_retries,
            "generated_tokens_per_s": self.generated_tokens_per_s,
            "trained_tokens_per_s": self.trained_tokens_per_s,
            "reward_kl_mean": self.reward_kl_mean,
            "reward_kl_coef": self.reward_kl_coef,
            "memory_peak_bytes": self.memory_peak_bytes,
            "warnings": list(self.warnings),
            "mini_batch_latency_s": [quantiles.to_json() for quantiles in self.mini_batch_latency_s],
            "mini_batch_bias_length": self.mini_batch_bias.length,
            "mini_batch_bias_score": self.mini_batch_bias.score,
            "mini_batch_bias_latency": self.mini_batch_bias.latency,
            **self.metrics,
            "by_staleness": _by_text(self.by_staleness),
            "mini_batches": [_update_to_json(update) for update in self.updates],
        }


def combined_metrics(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Combines each metric over the parts that have it: the mean, but the largest of `_max` and smallest of `_min`."""
    found = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        values = [part[name] for part in parts if name in part]
        match name.rpartition("_")[2]:
            case "max":
                found[name] = max(values)
            case "min":
                found[name] = min(values)
            case _:
                found[name] = sum(values) / len(values)
    return found


def _update_to_json(update: UpdateReport) -> dict[str, Any]:
    return {
        "mini_batch": update.mini_batch,
        "epoch": update.epoch,
        **update.metrics,
        "by_staleness": _by_text(update.by_staleness),
    }


def _by_text(by_number: Mapping[int, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Turns the keys into strings, as JSON needs."""
    return {str(number): dict(metrics) for number, metrics in by_number.items()}


def mean_of(values: Iterable[float]) -> float | None:
    numbers: Sequence[float] = list(values)
    return sum(numbers) / len(numbers) if numbers else None
