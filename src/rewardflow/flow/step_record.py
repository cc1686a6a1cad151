"""Collects what happens during a step and makes its report.

Always true: a record covers the time from the end of the previous step's report to its own.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rewardflow.flow.device_usage import UsageTotals
from rewardflow.flow.flow_parts import Devices
from rewardflow.flow.mini_batch_bias import MiniBatchFigures
from rewardflow.flow.open_step import OpenStep
from rewardflow.flow.protocols import Rewards
from rewardflow.flow.quantiles import Quantiles
from rewardflow.flow.records import Sample, UpdateReport, num_sampled_tokens
from rewardflow.flow.reports import StepReport, mean_of
from rewardflow.types import Reward


@dataclass(slots=True)
class TrainedSoFar:
    """What a step has trained so far, by whatever trainer; makes the part of the report that all trainers share."""

    step: int
    began_s: float
    num_groups: int = 0
    first_update_s: float | None = None  # since the step began
    updates: list[UpdateReport] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)  # of each sample that was trained
    response_tokens: list[int] = field(default_factory=list)

    def report(
        self,
        *,
        version: int,
        ended_s: float,
        usage: UsageTotals,
        dropped: Mapping[str, int],
        rewards: Sequence[Reward],
        averaged: Sequence[Reward],
    ) -> StepReport:
        """Counts all `rewards`; takes the means of scores and components over those in `averaged`."""
        components: defaultdict[str, list[float]] = defaultdict(list)
        for reward in averaged:
            for name, value in reward.components.items():
                if value is not None:
                    components[name].append(value)
        failed = [reward for reward in rewards if reward.value is None]
        return StepReport(
            step=self.step,
            version=version,
            ended_s=ended_s,
            duration_s=usage.wall_s,  # not `ended_s - began_s`: its parts must add up to it exactly
            first_update_s=self.first_update_s,
            usage=usage,
            updates=tuple(self.updates),
            num_groups=self.num_groups,
            num_reserves_used=0,
            dropped=dropped,
            num_scored=sum(reward.value is not None for reward in rewards),
            failed=dict(Counter(map(_kind_of, failed))),
            first_errors={_kind_of(reward): reward.error or "" for reward in reversed(failed)},
            score_mean=mean_of(reward.value for reward in averaged if reward.value is not None),
            component_means={name: sum(values) / len(values) for name, values in components.items()},
            response_tokens_mean=mean_of(self.response_tokens),
            staleness_mean=mean_of(self.staleness),
            staleness_max=max(self.staleness, default=None),
            reward_latency_mean_s=mean_of(reward.latency_s for reward in rewards if not reward.cached),
            cost_usd=sum(reward.cost_usd for reward in rewards),
        )


def _kind_of(reward: Reward) -> str:
    return reward.kind or "user_error"


@dataclass(frozen=True, slots=True)
class _Calls:
    """The agent's call and retry counts so far."""

    calls: int = 0
    retries: int = 0

    @classmethod
    def of(cls, agent: Rewards) -> _Calls:
        if not agent.is_open:
            return cls()
        statistics = agent.statistics()
        return cls(statistics.calls, statistics.retries)


class StepRecord:
    """The figures of one step while it runs; `report` turns them into a `StepReport`."""

    def __init__(self, step: int, devices: Devices, agent: Rewards) -> None:
        self._devices = devices
        self._agent = agent
        self._loop = asyncio.get_running_loop()
        self._trained = TrainedSoFar(step, began_s=self._loop.time())
        self._before = devices.trainer.usage.totals()
        self._generator_before = devices.generator.usage.totals()
        self._calls_before = _Calls.of(agent)
        self._figures = MiniBatchFigures()

    def trained(self, samples: Sequence[Sample], mini_batch: int = 0) -> None:
        trained = self._trained
        trained.num_groups += len({sample.rollout.group_id for sample in samples})
        for sample in samples:
            rollout = sample.rollout
            if rollout.policy_version is not None:
                trained.staleness.append(trained.step - rollout.policy_version)
            if rollout.response_mask is not None:
                trained.response_tokens.append(num_sampled_tokens(rollout))
        self._figures.add(samples, mini_batch)

    def updated(self, report: UpdateReport) -> None:
        if self._trained.first_update_s is None:
            self._trained.first_update_s = self._loop.time() - self._trained.began_s
        self._trained.updates.append(report)

    def report(self, open_step: OpenStep, version: int) -> StepReport:
        judged = [
            (rollout, reward)
            for group in open_step.scored.values()
            for rollout, reward in zip(group.rollouts, group.rewards, strict=True)
        ]
        scored = [(rollout, reward) for rollout, reward in judged if reward.value is not None]
        baselines = [reward for rollout, reward in scored if open_step.is_baseline(rollout)]
        now = self._loop.time()
        calls = _Calls.of(self._agent)
        usage = self._devices.trainer.usage.totals().since(self._before)
        generator = self._devices.generator.usage.totals().since(self._generator_before)
        report = self._trained.report(
            version=version,
            ended_s=now,
            usage=usage,
            dropped={str(reason): count for reason, count in open_step.dropped.items()},
            rewards=[reward for _, reward in judged],
            averaged=[reward for rollout, reward in scored if not open_step.is_baseline(rollout)],
        )
        return replace(
            report,
            num_reserves_used=open_step.num_reserves_used,
            baseline_score_mean=mean_of(reward.value for reward in baselines if reward.value is not None),
            num_calls=calls.calls - self._calls_before.calls,
            num_retries=calls.retries - self._calls_before.retries,
            generated_tokens_per_s=generator.tokens_per_s(generator.generated_tokens, "generate"),
            trained_tokens_per_s=usage.tokens_per_s(sum(update.num_tokens for update in report.updates), "update"),
            mini_batch_latency_s=tuple(map(Quantiles.of, self._figures.latencies_by_mini_batch())),
            mini_batch_bias=self._figures.bias(),
        )
