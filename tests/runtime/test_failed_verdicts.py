"""A failed verdict neither trains nor votes: from the agent through the advantage to the gradient."""

import asyncio
import contextlib
import itertools
from array import array
from typing import Any

import pytest
import torch

from rewardflow.algo.advantages import make_advantages
from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.records import MicroBatch, Precomputed, Sample
from rewardflow.policy.load_policy import load_policy
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.component import Weighted
from rewardflow.settings.run_settings import AlgorithmSettings, PolicySettings, TrainerSettings
from rewardflow.train.fsdp2.trainer import TorchTrainer
from rewardflow.types import Rollout, ScoredGroup


def _no_log_probs(rollout: Rollout) -> Precomputed:
    return Precomputed()


SCORES = (1.0, 3.0, None, 2.0)


def rollout(index: int, size: int = 4, group_id: str = "0") -> Rollout:
    length = 3 + index
    return Rollout(
        group_id=group_id,
        index=index,
        group_size=size,
        response=str(index),
        token_ids=array("i", [5, 6, 7, *range(8, 8 + length)]),
        response_mask=array("b", [0] * 3 + [1] * length),
        log_probs=array("f", [0.0] * (3 + length)),
        policy_version=0,
    )


async def scripted_score(response: str) -> float:
    value = SCORES[int(response)]
    if value is None:
        raise ValueError("no verdict")
    return value


async def nothing(response: str) -> float:
    return 0.0


async def judged(rollouts: list[Rollout], reward: Any) -> ScoredGroup:
    async with RewardAgent(reward, max_attempts=1) as agent:
        (group,) = await agent.submit(rollouts).all()
    return group


async def gradient_of(group: ScoredGroup, **algorithm: Any) -> torch.Tensor:
    settings = AlgorithmSettings(**algorithm)
    policy = load_policy(PolicySettings(tiny_hidden=32), seed=0)
    (advantages,) = make_advantages(settings)([group], _no_log_probs)
    samples = tuple(
        Sample(rollout=one, reward=reward, advantage=advantage, precomputed=Precomputed(reference=None))
        for one, reward, advantage in zip(group.rollouts, group.rewards, advantages, strict=True)
    )
    with DeviceThread("test") as thread:
        trainer = TorchTrainer(
            policy.model,
            trainer=TrainerSettings(lr=0.0, max_grad_norm=None, threads=1),
            algorithm=settings,
            uses_old=False,
            temperature=1.0,
            max_response_tokens=8,
            total_steps=1,
            thread=thread,
        )
        seen: list[torch.Tensor] = []
        trainer.optimizer.register_step_pre_hook(
            lambda optimizer, *_: seen.append(
                torch.cat([p.grad.flatten() for g in optimizer.param_groups for p in g["params"]]).double()
            )
        )
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(trainer.step(0))
            await trainer.forward_backward(MicroBatch(step=0, mini_batch=0, samples=samples))
            await trainer.optim_step()
    return seen[0]


@pytest.mark.parametrize(
    "reward", [scripted_score, [Weighted(scripted_score, name="judge"), Weighted(nothing, 0.5, name="rule")]]
)
@pytest.mark.parametrize(
    "algorithm",
    [
        {"aggregation": name, "entropy_coef": entropy}
        for name, entropy in itertools.product(
            ("token_mean", "seq_mean_token_sum", "seq_mean_token_mean", "fixed_length"), (0.0, 0.01)
        )
    ],
    ids=str,
)
def test_a_group_with_a_failure_has_the_advantages_and_the_gradient_of_the_others_alone(
    reward: Any, algorithm: dict[str, Any]
) -> None:
    async def main() -> None:
        with_failure = await judged([rollout(index) for index in range(4)], reward)
        assert [one.value for one in with_failure.rewards] == list(SCORES)
        kept = [i for i, value in enumerate(SCORES) if value is not None]
        alone = ScoredGroup(
            group_id="0",
            step=0,
            group_size=4,
            rollouts=tuple(with_failure.rollouts[i] for i in kept),
            rewards=tuple(with_failure.rewards[i] for i in kept),
        )
        (all_advantages,) = make_advantages(AlgorithmSettings())([with_failure], _no_log_probs)
        (their_advantages,) = make_advantages(AlgorithmSettings())([alone], _no_log_probs)
        assert [all_advantages[i] for i in kept] == list(their_advantages)
        assert all_advantages[2] == 0.0
        one, other = await gradient_of(with_failure, **algorithm), await gradient_of(alone, **algorithm)
        assert one.norm() > 0
        assert torch.equal(one, other)

    asyncio.run(main())
