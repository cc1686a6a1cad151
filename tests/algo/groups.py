"""Scored groups for tests, as batches of random or given scores, masks and log-probs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rewardflow.flow.records import Precomputed, PrecomputedOf
from rewardflow.types import EMPTY, Reward, Rollout, ScoredGroup


def scored_group(
    *scores: float | None,
    masks: Sequence[Sequence[int]] | None = None,
    group_id: str = "q",
    greedy: int | None = None,
) -> ScoredGroup:
    """Makes a group with these scores, None for a failure; `greedy` is the index of the greedy rollout."""
    return ScoredGroup(
        group_id=group_id,
        step=0,
        group_size=len(scores),
        rollouts=tuple(
            Rollout(
                group_id=group_id,
                index=index,
                group_size=len(scores),
                response="",
                response_mask=None if masks is None else masks[index],
                extra_info={"greedy": True} if index == greedy else EMPTY,
            )
            for index in range(len(scores))
        ),
        rewards=tuple(Reward(value=score) for score in scores),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredBatch:
    """The same data as groups and as verl's tensors: a row for each scored rollout, in order."""

    groups: Sequence[ScoredGroup]
    old: dict[tuple[str, int], Tensor]
    reference: dict[tuple[str, int], Tensor]

    @classmethod
    def of(cls, groups: Sequence[ScoredGroup], generator: torch.Generator) -> ScoredBatch:
        """Draws random log-probs; each mask covers the response, without a prompt."""
        old, reference = (
            {
                (group.group_id, rollout.index): -torch.rand(sum(rollout.response_mask or ()), generator=generator)
                for group in groups
                for rollout in group.rollouts
            }
            for _ in range(2)
        )
        return cls(groups=groups, old=old, reference=reference)

    @property
    def precomputed_of(self) -> PrecomputedOf:
        return lambda rollout: Precomputed(
            old=self.old[rollout.group_id, rollout.index], reference=self.reference[rollout.group_id, rollout.index]
        )

    @property
    def scored(self) -> list[tuple[Rollout, float]]:
        return [
            (rollout, reward.value)
            for group in self.groups
            for rollout, reward in zip(group.rollouts, group.rewards, strict=True)
            if reward.value is not None
        ]

    @property
    def mask_BT(self) -> Tensor:
        return torch.tensor([list(rollout.response_mask or ()) for rollout, _ in self.scored])

    @property
    def scores_BT(self) -> Tensor:
        """The scores, each on its last sampled token."""
        mask_BT = self.mask_BT
        scores_BT = torch.zeros(mask_BT.shape)
        for row, (_, score) in enumerate(self.scored):
            scores_BT[row, mask_BT[row].nonzero()[-1]] = score
        return scores_BT

    def spread_out(self, values: dict[tuple[str, int], Tensor]) -> Tensor:
        """Puts the values of sampled tokens at their positions."""
        mask_BT = self.mask_BT.bool()
        rows = [values[rollout.group_id, rollout.index] for rollout, _ in self.scored]
        return torch.zeros(mask_BT.shape).masked_scatter(mask_BT, torch.cat(rows))

    def tokens_of(self, advantages: Sequence[Sequence[float | Tensor]]) -> Tensor:
        """Puts the advantages of the scored rollouts at their tokens, as verl does."""
        given = [
            advantage
            for group, group_advantages in zip(self.groups, advantages, strict=True)
            for reward, advantage in zip(group.rewards, group_advantages, strict=True)
            if reward.value is not None
        ]
        mask_BT = self.mask_BT.bool()
        rows = [
            torch.as_tensor(one, dtype=torch.float32).expand(int(mask_T.sum()))
            for one, mask_T in zip(given, mask_BT, strict=True)
        ]
        return torch.zeros(mask_BT.shape).masked_scatter(mask_BT, torch.cat(rows))


# Three groups of different sizes, with zeros among the scores and tokens between turns that the policy did not sample.
FIXED = ScoredBatch.of(
    [
        scored_group(
            *(1.0, 0.0, 0.5, 0.25),
            masks=[[1, 1, 0, 1, 1, 0], [1, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]],
            group_id="a",
        ),
        scored_group(3.0, -1.0, 2.0, masks=[[1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 1, 0], [1, 1, 1, 1, 0, 0]], group_id="b"),
        scored_group(0.0, 7.0, masks=[[1, 0, 1, 0, 1, 0], [1, 1, 1, 1, 1, 0]], group_id="c"),
    ],
    torch.Generator().manual_seed(1),
)
