"""A reward that takes as long as the original experiment's did, at a chosen scale, and the run that uses it.

Always true: a delay is drawn evenly between 1 and 40 s (scaled) and depends only on the seed and on the rollout's
place, so that every schedule waits for the same calls; the score depends only on the answer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from rewardflow.flow.schedule import Schedule
from rewardflow.reward.latency import LONGEST_S, SHORTEST_S
from rewardflow.settings.run_settings import (
    DataSettings,
    GenerationSettings,
    PolicySettings,
    RunSettings,
    TrainerSettings,
)
from rewardflow.types import Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedReward:
    """A reward with delays: `RewardAgent(DelayedReward(...))`. With `scale=0` it answers at once."""

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
        return matching_share(rollout.response, str(rollout.ground_truth))

    def delay_s(self, rollout: Rollout) -> float:
        return self._delays_s[int(rollout.group_id) * self.group_size + rollout.index]


def matching_share(response: str, answer: str) -> float:
    """Returns the share of the answer's characters that the response has in their places."""
    return sum(given == wanted for given, wanted in zip(response, answer, strict=False)) / len(answer)


def delayed_run(
    schedule: Schedule, *, group_size: int, steps: int, seed: int, hidden: int, micro_batch_tokens: int
) -> RunSettings:
    """Returns the settings of the run that schedules are measured with: a tiny model learns to copy digits."""
    return RunSettings(
        reward="rewardflow.bench.delayed_reward:DelayedReward",
        data=DataSettings(task="copy_digits"),
        schedule=schedule,
        steps=steps,
        seed=seed,
        policy=PolicySettings(tiny_hidden=hidden),
        generation=GenerationSettings(
            group_size=group_size,
            max_prompt_tokens=16,
            overlong_prompts="truncate",  # no prompt is too long, and this way none is read twice to find out
            max_response_tokens=4,
            max_sequences=1024,
        ),
        # One thread leaves the loop a core where the machine has two.
        trainer=TrainerSettings(lr=3e-3, threads=1, device="cpu", micro_batch_tokens=micro_batch_tokens),
    )
