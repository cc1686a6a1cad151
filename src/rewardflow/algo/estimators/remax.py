"""Compares each rollout with the policy's greedy response: ReMax.

Always true: the baseline is a real verdict, never an invented number; if the greedy response has none, the group gets
0, because it has nothing to compare with. The greedy response itself gets 0 and pays no penalty, as in verl.

The greedy response is a rollout of the group that the generator marked with `extra_info={"greedy": True}`. It must not
train: the loop, which requested it, leaves it out of the samples.

See https://arxiv.org/abs/2310.10505.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rewardflow.algo.estimator import Advantage, PenaltyOf, ScoredOnlyEstimator, ScoredRollout, ScoredRollouts
from rewardflow.algo.estimators.reinforce_plus_plus import returns
from rewardflow.errors import InvalidInput
from rewardflow.flow.records import GREEDY, PrecomputedOf, num_sampled_tokens
from rewardflow.settings.algorithm_needs import Needs
from rewardflow.types import Rollout, ScoredGroup


def is_greedy(rollout: Rollout) -> bool:
    return bool(rollout.extra_info.get(GREEDY))


@dataclass(frozen=True, slots=True)
class AgainstGreedy(ScoredOnlyEstimator):
    """Score minus the score of the greedy response; with a penalty, each token's return minus that score."""

    @property
    def needs(self) -> Needs:
        return "group"

    def __call__(
        self,
        groups: Sequence[ScoredGroup],
        precomputed_of: PrecomputedOf | None = None,
        penalty_of: PenaltyOf | None = None,
    ) -> list[list[Advantage]]:
        for group in groups:
            num_greedy = sum(map(is_greedy, group.rollouts))
            if num_greedy != 1:
                raise InvalidInput(
                    'remax needs one greedy rollout in each group, marked by extra_info={"greedy": True}, '
                    f"got {num_greedy} in group {group.group_id!r}"
                )
        return ScoredOnlyEstimator.__call__(self, groups, precomputed_of, _paid_by_sampled(penalty_of))

    def estimate(self, groups: ScoredRollouts) -> list[list[Advantage]]:
        return [_of_group(group) for group in groups]


def _paid_by_sampled(penalty_of: PenaltyOf | None) -> PenaltyOf | None:
    if penalty_of is None:
        return None

    def paid(rollout: Rollout) -> Tensor:
        nothing = torch.zeros(num_sampled_tokens(rollout), dtype=torch.float64)
        return nothing if is_greedy(rollout) else penalty_of(rollout)

    return paid


def _of_group(group: Sequence[ScoredRollout]) -> list[Advantage]:
    baseline = next((scored.score for scored in group if is_greedy(scored.rollout)), None)
    if baseline is None:
        return [0.0] * len(group)
    return [0.0 if is_greedy(scored.rollout) else _above(baseline, scored) for scored in group]


def _above(baseline: float, scored: ScoredRollout) -> Advantage:
    if scored.penalty_T is None:
        return scored.score - baseline
    return (returns(scored.rewards_T(), 1.0) - baseline).float()
