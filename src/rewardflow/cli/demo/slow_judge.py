"""The demo's judge: a reward that takes 1 to 40 s a call, as in the original experiment, on a faster clock.

Always true: a delay depends only on the seed and on the rollout's place, so that both runs wait for the same calls; the
score depends only on the answer.

The judge answers in the demo's own process. Over HTTP a call takes about 0.7 ms of CPU, which is nothing beside the
seconds of a real judge, but would be most of a step on a clock that is hundreds of times as fast.
"""

from __future__ import annotations

import asyncio
import random

from rewardflow.mock_judge.marking import share_right
from rewardflow.reward.latency import LONGEST_S, SHORTEST_S
from rewardflow.types import Rollout


class SlowJudge:
    """Scores by the share of characters in their places. With `scale=0` it answers at once."""

    def __init__(self, seed: int, scale: float) -> None:
        self._seed = seed
        self._scale = scale

    async def compute_score(self, rollout: Rollout) -> float:
        if self._scale > 0:
            await asyncio.sleep(self.delay_s(rollout))
        return share_right(rollout.response, str(rollout.ground_truth))

    def delay_s(self, rollout: Rollout) -> float:
        drawn = random.Random(f"{self._seed}/{rollout.group_id}/{rollout.index}")
        return self._scale * drawn.uniform(SHORTEST_S, LONGEST_S)
