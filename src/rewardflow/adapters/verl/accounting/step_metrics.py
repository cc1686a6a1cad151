"""Collects what happened in a step of a verl run, for verl's loggers and for the run directory.

Always true: steps count from 1, as verl counts them, and step s publishes version s; every group that leaves counts
once, as trained or as dropped with a reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rewardflow.adapters.verl.accounting.group_report import GroupReport
from rewardflow.flow.device_usage import UsageTotals
from rewardflow.flow.records import UpdateReport
from rewardflow.flow.reports import StepReport, mean_of
from rewardflow.flow.step_record import TrainedSoFar
from rewardflow.observe.histogram import Histogram
from rewardflow.types import Reward

# Why groups are dropped: they have fewer verdicts than `min_group`, or verdicts that do not differ.
TOO_FEW_VERDICTS = "too_few_verdicts"
EQUAL_SCORES = "equal_scores"


@dataclass(slots=True)
class VerlStepRecord:
    """What happened in a step so far."""

    trained: TrainedSoFar
    groups: list[GroupReport] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    not_generated: int = 0

    @classmethod
    def of(cls, step: int, began_s: float) -> VerlStepRecord:
        return cls(TrainedSoFar(step, began_s))

    @property
    def step(self) -> int:
        return self.trained.step

    @property
    def rewards(self) -> list[Reward]:
        return [verdict.reward for group in self.groups for verdict in group.verdicts]

    @property
    def failed(self) -> Counter[str]:
        return Counter(str(reward.kind) for reward in self.rewards if reward.value is None)

    def why_nothing_trains(self, min_group: int) -> str:
        """Says why groups were dropped and how verdicts failed, with one of the errors."""
        errors = [group.error for group in self.groups] + [reward.error for reward in self.rewards]
        error = next((error for error in errors if error), None)
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.failed.items())
        scored = sum(reward.value is not None for reward in self.rewards)
        dropped = ", ".join(f"{count} {reason}" for reason, count in self.dropped.items())
        wanted = " that differ, for algorithm.filter_groups" if EQUAL_SCORES in self.dropped else ""
        return (
            f"a step needs a group with at least rewardflow.min_group={min_group} verdicts{wanted}, got none in "
            f"{len(self.groups)} groups ({dropped or 'none dropped'}): {scored} verdicts scored, "
            f"{kinds or 'none'} failed" + (f", among them {error}" if error else "")
        )

    def group_left(self, group: GroupReport, *, not_generated: int, dropped: str | None = None) -> None:
        """Counts a group that was trained or, for the reason in `dropped`, was not."""
        self.groups.append(group)
        self.not_generated += not_generated
        if dropped is not None:
            self.dropped[dropped] += 1
        else:
            self.trained.num_groups += 1

    def rows_trained(self, tags: Iterable[Mapping[str, Any]]) -> None:
        """Counts rows by the tags that verl gives them."""
        for tag in tags:
            self.trained.staleness.append(self.step - 1 - int(tag["min_global_steps"]))
            self.trained.response_tokens.append(int(tag["response_len"]))

    def updated(
        self, mini_batches: Iterable[Sequence[Mapping[str, Any]]], metrics: Mapping[str, Any], *, first_ended_s: float
    ) -> None:
        """Counts the updates of one call: one for each mini-batch, given by the tags of its rows.

        `first_ended_s` is when the call's first update ended. verl gives gradient norm and loss as means over the call.
        """
        if self.trained.first_update_s is None:
            self.trained.first_update_s = first_ended_s - self.trained.began_s
        policy_loss = {"policy_loss": float(metrics["actor/pg_loss"])} if "actor/pg_loss" in metrics else {}
        for tags in mini_batches:
            self.rows_trained(tags)
            self.trained.updates.append(
                UpdateReport(
                    num_sequences=len(tags),
                    num_tokens=sum(int(tag["response_len"]) for tag in tags),
                    grad_norm=float(metrics.get("actor/grad_norm", math.nan)),
                    lr=math.nan,
                    metrics=policy_loss,
                )
            )

    def report(self, usage: UsageTotals, *, ended_s: float) -> StepReport:
        rewards = self.rewards
        report = self.trained.report(
            version=self.step,
            ended_s=ended_s,
            usage=usage,
            dropped=dict(self.dropped),
            rewards=rewards,
            averaged=rewards,
        )
        return replace(
            report, duration_s=ended_s - self.trained.began_s, reward_latency_mean_s=mean_of(_call_latencies_s(rewards))
        )

    def metrics(self, usage: UsageTotals) -> dict[str, float]:
        """Returns the numbers for verl's loggers, under `rewardflow/`."""
        latency_s = Histogram()
        for seconds in _call_latencies_s(self.rewards):
            latency_s.add(seconds)
        numbers: dict[str, float | None] = {
            "exposed_s": usage.exposed_s,
            "hidden_s": usage.hidden_s,
            "first_update_s": self.trained.first_update_s,
            "verdicts/scored": sum(reward.value is not None for reward in self.rewards),
            "verdicts/failed": self.failed.total(),
            "verdicts/cached": sum(reward.cached for reward in self.rewards),
            "verdicts/imputed": sum(reward.imputed for reward in self.rewards),
            "rollouts/not_generated": self.not_generated,
            "groups/trained": self.trained.num_groups,
            "latency_s/p50": latency_s.quantile(0.5),
            "latency_s/p95": latency_s.quantile(0.95),
            "latency_s/max": latency_s.quantile(1.0),
            "attempts": sum(reward.attempts for reward in self.rewards),
            "cost_usd": sum(reward.cost_usd for reward in self.rewards),
            "tokens": sum(reward.tokens for reward in self.rewards),
            "staleness/max": max(self.trained.staleness, default=None),
            **{f"verdicts/failed/{kind}": count for kind, count in self.failed.items()},
            **{f"groups/dropped/{reason}": count for reason, count in self.dropped.items()},
            **{f"busy_s/{work}": seconds for work, seconds in usage.busy_s.items()},
            **{f"idle_s/{cause}": seconds for cause, seconds in usage.idle_s.items()},
        }
        return {f"rewardflow/{name}": float(value) for name, value in numbers.items() if value is not None}


def _call_latencies_s(rewards: Iterable[Reward]) -> list[float]:
    """Leaves out verdicts that needed no call."""
    return [reward.latency_s for reward in rewards if reward.attempts and not reward.cached]
