"""A reward that takes as long as the original experiment's did, at a chosen scale.

Always true: a delay is drawn evenly between 1 and 40 s (scaled) and depends on the seed and on the rollout's place
alone, so that every schedule waits for the same calls; the score depends on the answer alone.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from rewardflow.types import Rollout

SHORTEST_S, LONGEST_S = 1.0, 40.0
MEAN_S = (SHORTEST_S + LONGEST_S) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedReward:
    """`RewardAgent(DelayedReward(...))`; with `scale=0` it answers at once."""

    seed: int
    scale: float
    steps: int
    groups_per_step: int
    group_size: int
    _delays_s: Sequence[float] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        count = self.steps * self.groups_per_step * self.group_size
        drawn = [rng.uniform(SHORTEST_S, LONGEST_S) * self.scale for _ in range(count)]
        object.__setattr__(self, "_delays_s", drawn)

    async def compute_score(self, rollout: Rollout) -> float:
        if self.scale > 0:
            await asyncio.sleep(self.delay_s(rollout))
        return share_right(rollout.response, str(rollout.ground_truth))

    def delay_s(self, rollout: Rollout) -> float:
        return self._delays_s[int(rollout.group_id) * self.group_size + rollout.index]


def share_right(response: str, answer: str) -> float:
    """Characters in their right places."""
    return sum(given == wanted for given, wanted in zip(response, answer, strict=False)) / len(answer)
