"""Computes the validation figures of a version of the policy, overall and by data source.

Always true: a failed verdict is not a score, neither 0 nor a miss: every mean leaves it out, and the report counts it.
pass@k of a prompt with n scored rollouts, c of which pass, is 1 - C(n - c, k) / C(n, k), the unbiased estimate of the
chance that one of k passes; a prompt with fewer than k scored rollouts has no pass@k, and the report says how many
prompts have one.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewardflow.flow.records import is_truncated, num_sampled_tokens
from rewardflow.flow.reports import mean_of
from rewardflow.flow.validation.validation_plan import VALIDATION_SOURCE, ValidationPlan
from rewardflow.observe.events import SCHEMA_VERSION
from rewardflow.types import ScoredGroup


@dataclass(frozen=True, slots=True)
class PassAt:
    """pass@k as the mean over the prompts with at least k scored rollouts, and the number of these prompts."""

    k: int
    value: float | None
    num_prompts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationFigures:
    """The figures of one data source, or of all. A mean is None if nothing was scored."""

    num_prompts: int
    num_rollouts: int
    num_scored: int
    num_imputed: int  # of the scored: filled in by post-processing
    failed: Mapping[str, int]  # counts by kind
    group_size: int
    score_mean: float | None  # over scored rollouts
    mean_at_n: float | None  # over prompts, of each prompt's mean over its scored rollouts
    pass_share: float | None  # of scored rollouts
    pass_at: tuple[PassAt, ...]
    component_means: Mapping[str, float]
    response_tokens_mean: float | None
    truncated_share: float | None  # of all rollouts: those that the token limit cut off
    cost_usd: float

    def to_json(self) -> dict[str, Any]:
        """Returns a flat dict with the names of metrics.jsonl."""
        found: dict[str, Any] = {
            "score_mean": self.score_mean,
            f"mean@{self.group_size}": self.mean_at_n,
            "pass_share": self.pass_share,
        }
        for one in self.pass_at:
            found[f"pass@{one.k}"] = one.value
            found[f"pass@{one.k}_prompts"] = one.num_prompts
        found |= {f"component_means/{name}": mean for name, mean in self.component_means.items()}
        return found | {
            "response_tokens_mean": self.response_tokens_mean,
            "truncated_share": self.truncated_share,
            "num_prompts": self.num_prompts,
            "num_rollouts": self.num_rollouts,
            "num_scored": self.num_scored,
            "num_imputed": self.num_imputed,
            "num_failed": sum(self.failed.values()),
            **{f"failed/{kind}": count for kind, count in sorted(self.failed.items())},
            "cost_usd": self.cost_usd,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationReport:
    """The validation of one version. `duration_s` is the time from the start of its generation to its last verdict."""

    version: int
    ended_s: float
    duration_s: float
    generate_s: float  # how long it held the device
    overall: ValidationFigures
    by_source: Mapping[str, ValidationFigures]

    @property
    def metrics(self) -> dict[str, Any]:
        """Returns the figures by their names in metrics.jsonl; by data source only if there are several."""
        found = {f"{VALIDATION_SOURCE}/{name}": value for name, value in self.overall.to_json().items()}
        if len(self.by_source) > 1:
            for source, figures in self.by_source.items():
                for name, value in figures.to_json().items():
                    found[f"{VALIDATION_SOURCE}/{source}/{name}"] = value
        return found

    @property
    def stamp(self) -> dict[str, Any]:
        """Returns the fields that identify the version and the time. `step` is the number of trained steps."""
        return {
            "v": SCHEMA_VERSION,
            "step": self.version,
            "source": VALIDATION_SOURCE,
            "version": self.version,
            "ended_s": self.ended_s,
            "duration_s": self.duration_s,
            "generate_s": self.generate_s,
        }

    def to_metrics_json(self) -> dict[str, Any]:
        """Returns a line of metrics.jsonl."""
        return {**self.stamp, **self.metrics}

    def to_json(self) -> dict[str, Any]:
        """Returns a line of validation.jsonl."""
        by_source = {source: figures.to_json() for source, figures in self.by_source.items()}
        return {**self.stamp, "overall": self.overall.to_json(), "by_source": by_source}


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """A report and the groups behind it, in the order of the prompts."""

    report: ValidationReport
    groups: tuple[ScoredGroup, ...]


def names_of_figures(group_size: int, ks: Sequence[int]) -> frozenset[str]:
    """Returns the figures that every validation has, whatever its rewards and failures; a run may select by these."""
    return frozenset(figures_of((), group_size=group_size, ks=ks, passes_from=0.0).to_json())


def by_data_source(groups: Sequence[ScoredGroup], plan: ValidationPlan) -> dict[str, ValidationFigures]:
    found: defaultdict[str, list[ScoredGroup]] = defaultdict(list)
    for group in groups:
        found[group.rollouts[0].data_source].append(group)
    return {source: figures_of_plan(found[source], plan) for source in sorted(found)}


def figures_of_plan(groups: Sequence[ScoredGroup], plan: ValidationPlan) -> ValidationFigures:
    return figures_of(groups, group_size=plan.group_size, ks=plan.ks, passes_from=plan.passes_from)


def figures_of(
    groups: Sequence[ScoredGroup], *, group_size: int, ks: Sequence[int], passes_from: float
) -> ValidationFigures:
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    rewards = [reward for group in groups for reward in group.rewards]
    by_prompt = [[reward.value for reward in group.rewards if reward.value is not None] for group in groups]
    scores = [score for of_prompt in by_prompt for score in of_prompt]
    components: defaultdict[str, list[float]] = defaultdict(list)
    for reward in rewards:
        for name, value in reward.components.items() if reward.value is not None else ():
            if value is not None:
                components[name].append(value)
    return ValidationFigures(
        num_prompts=len(groups),
        num_rollouts=len(rollouts),
        num_scored=len(scores),
        num_imputed=sum(reward.imputed for reward in rewards),
        failed=dict(Counter(reward.kind or "user_error" for reward in rewards if reward.value is None)),
        group_size=group_size,
        score_mean=mean_of(scores),
        mean_at_n=mean_of(sum(of_prompt) / len(of_prompt) for of_prompt in by_prompt if of_prompt),
        pass_share=mean_of(score >= passes_from for score in scores),
        pass_at=tuple(_pass_at(k, by_prompt, passes_from) for k in ks),
        component_means={name: sum(values) / len(values) for name, values in components.items()},
        response_tokens_mean=mean_of(num_sampled_tokens(rollout) for rollout in rollouts),
        truncated_share=mean_of(is_truncated(rollout) for rollout in rollouts),
        cost_usd=sum(reward.cost_usd for reward in rewards),
    )


def _pass_at(k: int, by_prompt: Sequence[Sequence[float]], passes_from: float) -> PassAt:
    chances = [
        chance_of_a_pass(len(scores), sum(score >= passes_from for score in scores), k)
        for scores in by_prompt
        if len(scores) >= k
    ]
    return PassAt(k, mean_of(chances), len(chances))


def chance_of_a_pass(num_scored: int, num_passed: int, k: int) -> float:
    """Returns the chance that k of the scored rollouts, drawn without replacement, include a pass."""
    return 1.0 - math.comb(num_scored - num_passed, k) / math.comb(num_scored, k)
