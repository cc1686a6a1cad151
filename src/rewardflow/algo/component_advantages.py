"""Computes the advantages of each component of the reward, and sums them with weights.

Always true: each component is compared within the group by the same estimator as a single score would be, before it is
weighed. So a component with a small spread counts as much as its weight says, however large the others' spread is.
A rollout without a score has advantage 0. So has one whose score was put in place of a failure (`imputed`), for each
component that it lacks; any other verdict that has a score and lacks a component is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from rewardflow.algo.estimator import Advantage, Estimator, PenaltyOf
from rewardflow.errors import InvalidInput
from rewardflow.flow.records import PrecomputedOf
from rewardflow.settings.algorithm_needs import Needs
from rewardflow.types import Reward, ScoredGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class PerComponent:
    """Sums `weights[name]` times the advantage of each named component, as `estimator` computes it."""

    estimator: Estimator
    weights: Mapping[str, float]

    @property
    def needs(self) -> Needs:
        return self.estimator.needs

    def __call__(
        self,
        groups: Sequence[ScoredGroup],
        precomputed_of: PrecomputedOf | None = None,
        penalty_of: PenaltyOf | None = None,
    ) -> list[list[Advantage]]:
        by_component = {
            name: self.estimator([_of_component(group, name) for group in groups], precomputed_of, penalty_of)
            for name in self.weights
        }
        return [
            [self._sum({name: found[i][j] for name, found in by_component.items()}) for j in range(len(group.rollouts))]
            for i, group in enumerate(groups)
        ]

    def _sum(self, advantages: Mapping[str, Advantage]) -> Advantage:
        total: float | Tensor = 0.0
        for name, advantage in advantages.items():
            if not isinstance(advantage, int | float | Tensor):
                raise InvalidInput("advantages of components must be numbers or one number for each token")
            total = total + self.weights[name] * advantage
        return total


def _of_component(group: ScoredGroup, name: str) -> ScoredGroup:
    """Returns the group with the component in place of the score; failed verdicts stay failed."""
    rewards = tuple(reward if reward.value is None else _as_score(reward, group, name) for reward in group.rewards)
    return replace(group, rewards=rewards)


def _as_score(reward: Reward, group: ScoredGroup, name: str) -> Reward:
    value = reward.components.get(name)
    if value is None and reward.imputed:
        return replace(reward, value=None, status="failed", imputed=False)
    if value is None:
        known = ", ".join(reward.components) or "none"
        raise InvalidInput(
            f"component_weights must name components of every scored verdict, and {name!r} is missing in group "
            f"{group.group_id!r}; it has {known}"
        )
    return replace(reward, value=value)
