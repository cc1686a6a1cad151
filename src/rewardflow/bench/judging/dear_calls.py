"""Trains a small policy with a cheap judge, a dear one, and an escalation from the cheap to the dear one.

Always true: the figures of a seed depend on nothing else; the final reward is the exact expected true score of the
policy, not a sample of it.

The task: for each prompt the policy chooses one of eight answers. The cheap judge knows the bad half, and finds the
other half equally plausible; the dear judge knows the one that is right. So the cheap judge alone teaches to avoid the
bad half and nothing more. The policy is a table of logits, trained by the gradient of its groups' normalised
advantages.
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rewardflow.services.escalation import Escalation, normalised
from rewardflow.types import Reward, Rollout

Arm = Literal["cheap", "dear", "escalation"]

NUM_PROMPTS = 8
NUM_ANSWERS = 8
GROUP_SIZE = 8
STEPS = 300
LEARNING_RATE = 0.5
PLAUSIBLE = 0.6  # the cheap judge's score of every answer that is not plainly bad


@dataclass(frozen=True, slots=True)
class ArmResult:
    """The end of one training run."""

    arm: Arm
    seed: int
    final_reward: float
    dear_calls: int


@dataclass(slots=True)
class _Judges:
    """Both judges of one task. They count their calls."""

    right: Sequence[int]  # of each prompt
    plausible: Sequence[frozenset[int]]
    num_dear: int = 0

    def true_score(self, prompt: int, answer: int) -> float:
        return float(answer == self.right[prompt])

    def cheap_score(self, prompt: int, answer: int) -> float:
        return PLAUSIBLE if answer in self.plausible[prompt] else 0.0

    async def cheap(self, rollout: Rollout) -> float:
        return self.cheap_score(int(rollout.prompt), int(rollout.response))

    async def dear(self, rollout: Rollout) -> float:
        self.num_dear += 1
        return self.true_score(int(rollout.prompt), int(rollout.response))


def train(arm: Arm, seed: int, *, steps: int = STEPS) -> ArmResult:
    """Trains the policy with the verdicts of one arm."""
    return asyncio.run(_train(arm, seed, steps))


async def _train(arm: Arm, seed: int, steps: int) -> ArmResult:
    draw = random.Random(seed)
    plausible = [frozenset(draw.sample(range(NUM_ANSWERS), NUM_ANSWERS // 2)) for _ in range(NUM_PROMPTS)]
    judges = _Judges([draw.choice(sorted(answers)) for answers in plausible], plausible)
    escalation = Escalation(first=judges.cheap, then=judges.dear, between=(0.3, 0.9), share=0.25, parallel=GROUP_SIZE)
    logits = [[0.0] * NUM_ANSWERS for _ in range(NUM_PROMPTS)]
    for step in range(steps):
        for prompt in range(NUM_PROMPTS):
            shares = softmax(logits[prompt])
            answers = draw.choices(range(NUM_ANSWERS), shares, k=GROUP_SIZE)
            rollouts = [
                Rollout(
                    group_id=f"{prompt}",
                    step=step,
                    index=i,
                    group_size=GROUP_SIZE,
                    prompt=f"{prompt}",
                    response=f"{one}",
                )
                for i, one in enumerate(answers)
            ]
            scores = await _scores(arm, rollouts, judges, escalation)
            _update(logits[prompt], shares, answers, normalised(scores))
    reward = statistics.fmean(softmax(logits[prompt])[judges.right[prompt]] for prompt in range(NUM_PROMPTS))
    return ArmResult(arm, seed, reward, judges.num_dear)


async def _scores(arm: Arm, rollouts: Sequence[Rollout], judges: _Judges, escalation: Escalation) -> list[float]:
    if arm == "escalation":
        return [_value(reward) for reward in await escalation.score_group(rollouts)]
    judge = judges.cheap if arm == "cheap" else judges.dear
    return [await judge(rollout) for rollout in rollouts]


def _value(reward: Reward) -> float:
    return math.nan if reward.value is None else reward.value


def _update(logits: list[float], shares: Sequence[float], answers: Sequence[int], advantages: Sequence[float]) -> None:
    """Follows the policy gradient of one group."""
    for answer, advantage in zip(answers, advantages, strict=True):
        rate = LEARNING_RATE * advantage / len(answers)
        for other, share in enumerate(shares):
            logits[other] += rate * ((other == answer) - share)


def softmax(logits: Sequence[float]) -> list[float]:
    top = max(logits)
    powers = [math.exp(logit - top) for logit in logits]
    total = math.fsum(powers)
    return [power / total for power in powers]
