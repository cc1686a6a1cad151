"""Rewards land on their own tokens, in whatever order groups finish, for advantages that look at tokens."""

import asyncio
import itertools
from typing import Any

import pytest
import torch

from rewardflow import clock
from rewardflow.algo.advantages import GroupRelative
from rewardflow.flow.fakes import FakeGenerator, FakePrompts, FakeTrainer
from rewardflow.flow.flow_parts import FlowParts
from rewardflow.flow.run import Flow
from rewardflow.flow.schedule import Schedule
from rewardflow.reward.agent import RewardAgent

DISCOUNT = 0.5


def length_of(prompt: int, index: int) -> int:
    return 1 + (prompt * 5 + index * 3) % 11


def trained(order: tuple[int, ...], stream: Any) -> FakeTrainer:
    """One step of four groups that finish in this order."""

    async def compute_score(solution_str: str) -> float:
        prompt, index = map(int, solution_str.split("."))
        await asyncio.sleep(10.0 * order.index(prompt) + index)
        return float(10 * prompt + index * index)

    async def main() -> FakeTrainer:
        trainer = FakeTrainer()
        async with RewardAgent(compute_score, timeout_s=None) as agent:
            parts = FlowParts(
                schedule=Schedule(groups_per_step=4, mini_batches=2, stream=stream),
                prompts=FakePrompts(),
                generator=FakeGenerator(num_tokens=lambda request, index: length_of(int(request.prompt.uid), index)),
                agent=agent,
                trainer=trainer,
                advantages=GroupRelative(scale="none", discount=DISCOUNT),
                group_size=3,
                micro_batch_tokens=20,
            )
            await Flow(parts).run(steps=1)
        return trainer

    return clock.run(main())


@pytest.mark.parametrize("stream", ["batch", "mini_batch", "micro_batch"])
@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=str)
def test_each_response_gets_its_own_reward_at_its_own_last_token(order: tuple[int, ...], stream: Any) -> None:
    seen = set()
    for batch in trained(order, stream).batches:
        for sample in batch.samples:
            prompt, index = map(int, sample.rollout.response.split("."))
            length = length_of(prompt, index)
            advantage = index * index - (0 + 1 + 4) / 3
            expected = torch.tensor([advantage * DISCOUNT ** (length - 1 - t) for t in range(length)])
            assert torch.allclose(sample.advantage, expected)
            seen.add(sample.rollout.response)
    assert len(seen) == 12
