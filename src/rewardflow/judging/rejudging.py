"""Compares a run's verdicts with those of another judge on the same rollouts.

Always true: only rollouts that both judges scored count; advantages are normalised within the group, over exactly these
rollouts, for both judges.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewardflow.judging.agreement import Estimate, ScorePair, estimate, mean_difference, ordered_pairs, spearman
from rewardflow.types import Reward, Rollout

Place = tuple[int, str, int]


@dataclass(frozen=True, slots=True)
class JudgedBefore:
    """A rollout of a run, and the score that the run trained on, or that of one reward of a weighted sum."""

    rollout: Rollout
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepComparison:
    """The mean scores of one step under both judges."""

    step: int
    rollouts: int
    score: float
    other: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejudging:
    """The figures of a run under another judge. `sign_changes` and the others are shares."""

    reward: str
    rollouts: int
    failed: int
    groups: int
    correlation: Estimate | None
    shift: Estimate | None
    pairs_in_order: Estimate | None
    sign_changes: Estimate | None
    best_changes: Estimate | None
    cost_usd: float
    steps: tuple[StepComparison, ...]

    def to_json(self) -> dict[str, Any]:
        names = ("correlation", "shift", "pairs_in_order", "sign_changes", "best_changes")
        estimates = {name: getattr(self, name) for name in names}
        return {
            "reward": self.reward,
            "rollouts": self.rollouts,
            "failed": self.failed,
            "groups": self.groups,
            **{name: None if one is None else one.to_json() for name, one in estimates.items()},
            "cost_usd": self.cost_usd,
            "steps": [
                {"step": one.step, "rollouts": one.rollouts, "score": one.score, "other": one.other}
                for one in self.steps
            ],
        }


def rejudging_of(reward: str, before: Sequence[JudgedBefore], verdicts: Mapping[Place, Reward]) -> Rejudging:
    """Compares the scores before with the other judge's verdicts on the same rollouts."""
    pairs: list[ScorePair] = []
    by_step: defaultdict[int, list[ScorePair]] = defaultdict(list)
    for one in before:
        value = verdicts[one.rollout.place].value
        if value is not None:
            pair = ScorePair(value, one.score, f"{one.rollout.step}/{one.rollout.group_id}")
            pairs.append(pair)
            by_step[one.rollout.step].append(pair)
    return Rejudging(
        reward=reward,
        rollouts=len(pairs),
        failed=len(before) - len(pairs),
        groups=len({pair.group for pair in pairs}),
        correlation=estimate(pairs, spearman),
        shift=estimate(pairs, mean_difference),
        pairs_in_order=estimate(pairs, ordered_pairs),
        sign_changes=estimate(pairs, sign_changes),
        best_changes=estimate(pairs, best_changes),
        cost_usd=sum(verdicts[one.rollout.place].cost_usd for one in before),
        steps=tuple(
            StepComparison(
                step=step,
                rollouts=len(members),
                score=statistics.fmean(pair.other for pair in members),
                other=statistics.fmean(pair.score for pair in members),
            )
            for step, members in sorted(by_step.items())
        ),
    )


def sign_changes(pairs: Sequence[ScorePair]) -> float | None:
    """Returns the share of rollouts whose advantage has another sign under the other judge; zero is a sign of its own.

    Counts groups with two or more rollouts: others have no advantage.
    """
    changed = count = 0
    for members in _groups(pairs):
        mean = statistics.fmean(pair.score for pair in members)
        other_mean = statistics.fmean(pair.other for pair in members)
        changed += sum(_sign(pair.score - mean) != _sign(pair.other - other_mean) for pair in members)
        count += len(members)
    return changed / count if count else None


def best_changes(pairs: Sequence[ScorePair]) -> float | None:
    """Returns the share of groups in which no answer is best under both judges."""
    groups = _groups(pairs)
    changed = 0
    for members in groups:
        best, other_best = max(pair.score for pair in members), max(pair.other for pair in members)
        changed += not any(pair.score == best and pair.other == other_best for pair in members)
    return changed / len(groups) if groups else None


def _groups(pairs: Sequence[ScorePair]) -> list[list[ScorePair]]:
    groups: defaultdict[str, list[ScorePair]] = defaultdict(list)
    for pair in pairs:
        groups[pair.group].append(pair)
    return [members for members in groups.values() if len(members) > 1]


def _sign(value: float) -> int:
    return 0 if abs(value) < 1e-12 else 1 if value > 0 else -1
