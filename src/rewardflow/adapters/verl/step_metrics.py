"""What is known of a step of a verl run: for the run directory, as of any other run, and for verl's loggers.

Always true: steps are counted as verl counts them, from 1, and step s publishes version s.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from rewardflow.adapters.verl.training.group_board import GroupReport
from rewardflow.flow.device_usage import UsageTotals
from rewardflow.flow.records import UpdateReport
from rewardflow.flow.reports import StepReport, mean_of
from rewardflow.observe.histogram import Histogram
from rewardflow.types import Reward


@dataclass(slots=True)
class StepAccount:
    """What is known of a step while it is trained."""

    step: int
    started_s: float
    first_update_s: float | None = None
    groups: list[GroupReport] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    not_generated: int = 0
    updates: list[UpdateReport] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    response_tokens: list[int] = field(default_factory=list)

    @property
    def rewards(self) -> list[Reward]:
        return [verdict.reward for group in self.groups for verdict in group.verdicts]

    @property
    def failed(self) -> Counter[str]:
        return Counter(str(reward.kind) for reward in self.rewards if reward.value is None)

    @property
    def an_error(self) -> str:
        """One of the reasons, for a message."""
        reasons = [group.error for group in self.groups] + [reward.error for reward in self.rewards]
        return next((reason for reason in reasons if reason), "no reason given")

    def report(self, usage: UsageTotals, *, ended_s: float) -> StepReport:
        rewards = self.rewards
        called = [reward.latency_s for reward in rewards if reward.attempts and not reward.cached]
        staleness = [self.step - 1 - version for version in self.versions]
        return StepReport(
            step=self.step,
            version=self.step,
            ended_s=ended_s,
            duration_s=ended_s - self.started_s,
            first_update_s=self.first_update_s,
            usage=usage,
            updates=tuple(self.updates),
            num_groups=len(self.groups) - self.dropped.total(),
            num_reserves_used=0,
            dropped=dict(self.dropped),
            num_scored=sum(reward.value is not None for reward in rewards),
            failed=dict(self.failed),
            score_mean=mean_of(reward.value for reward in rewards if reward.value is not None),
            component_means=_component_means(rewards),
            response_tokens_mean=mean_of(self.response_tokens),
            staleness_mean=mean_of(staleness),
            staleness_max=max(staleness, default=None),
            reward_latency_mean_s=mean_of(called),
            cost_usd=sum(reward.cost_usd for reward in rewards),
        )

    def metrics(self, usage: UsageTotals) -> dict[str, float]:
        """For verl's loggers, under `rewardflow/`."""
        latency_s = Histogram()
        for reward in self.rewards:
            if reward.attempts and not reward.cached:
                latency_s.add(reward.latency_s)
        numbers: dict[str, float | None] = {
            "exposed_s": usage.exposed_s,
            "hidden_s": usage.hidden_s,
            "first_update_s": self.first_update_s,
            "verdicts/scored": sum(reward.value is not None for reward in self.rewards),
            "verdicts/failed": self.failed.total(),
            "verdicts/cached": sum(reward.cached for reward in self.rewards),
            "verdicts/imputed": sum(reward.imputed for reward in self.rewards),
            "rollouts/not_generated": self.not_generated,
            "groups/trained": len(self.groups) - self.dropped.total(),
            "latency_s/p50": latency_s.quantile(0.5),
            "latency_s/p95": latency_s.quantile(0.95),
            "latency_s/max": latency_s.quantile(1.0),
            "attempts": sum(reward.attempts for reward in self.rewards),
            "cost_usd": sum(reward.cost_usd for reward in self.rewards),
            "tokens": sum(reward.tokens for reward in self.rewards),
            "staleness/max": max((self.step - 1 - version for version in self.versions), default=None),
            **{f"verdicts/failed/{kind}": count for kind, count in self.failed.items()},
            **{f"groups/dropped/{reason}": count for reason, count in self.dropped.items()},
            **{f"busy_s/{work}": seconds for work, seconds in usage.busy_s.items()},
            **{f"idle_s/{cause}": seconds for cause, seconds in usage.idle_s.items()},
        }
        return {f"rewardflow/{name}": float(value) for name, value in numbers.items() if value is not None}


def _component_means(rewards: Sequence[Reward]) -> dict[str, float]:
    values: defaultdict[str, list[float]] = defaultdict(list)
    for reward in rewards:
        for name, value in reward.components.items():
            if value is not None:
                values[name].append(value)
    return {name: sum(numbers) / len(numbers) for name, numbers in values.items()}
