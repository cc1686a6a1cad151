"""How much better than the policy's greedy response a rollout was: ReMax.

Always true: the baseline is a verdict, never a number made up for one; if the greedy response has none, there is
nothing to compare with and the group gets 0. The greedy response itself gets 0, and pays no penalty, as in verl.

It arrives as a rollout of the group that whoever generated it marked with `extra_info={"greedy": True}`. It must not
train: the loop, which asked for it, leaves it out of the samples.

See https://arxiv.org/abs/2310.10505.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rewardflow.algo.earned import Advantage, Earned, EarnedGroups, OverScored, PenaltyOf
from rewardflow.algo.estimators.reinforce_plus_plus import returns
from rewardflow.errors import InvalidInput
from rewardflow.flow.records import GREEDY, PrecomputedOf, num_sampled_tokens
from rewardflow.settings.algorithm_needs import Needs
from rewardflow.types import Rollout, ScoredGroup


def is_greedy(rollout: Rollout) -> bool:
    return bool(rollout.extra_info.get(GREEDY))


@dataclass(frozen=True, slots=True)
class AgainstGreedy(OverScored):
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
        return OverScored.__call__(self, groups, precomputed_of, _paid_by_sampled(penalty_of))

    def estimate(self, groups: EarnedGroups) -> list[list[Advantage]]:
        return [_of_group(group) for group in groups]


def _paid_by_sampled(penalty_of: PenaltyOf | None) -> PenaltyOf | None:
    if penalty_of is None:
        return None

    def paid(rollout: Rollout) -> Tensor:
        nothing = torch.zeros(num_sampled_tokens(rollout), dtype=torch.float64)
        return nothing if is_greedy(rollout) else penalty_of(rollout)

    return paid


def _of_group(group: Sequence[Earned]) -> list[Advantage]:
    baseline = next((earned.score for earned in group if is_greedy(earned.rollout)), None)
    if baseline is None:
        return [0.0] * len(group)
    return [0.0 if is_greedy(earned.rollout) else _above(baseline, earned) for earned in group]


def _above(baseline: float, earned: Earned) -> Advantage:
    if earned.penalty_T is None:
        return earned.score - baseline
    return (returns(earned.rewards_T(), 1.0) - baseline).float()
