"""The agent as one of TRL's `reward_funcs`, in a real `GRPOTrainer`: what docs/from_trl.md says of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trl

import rewardflow as rf

GROUP_SIZE = 4


def trained(make: Any, reward_funcs: Any, *, steps: int = 2) -> trl.GRPOTrainer:
    trainer = make(trl.GRPOTrainer, reward_funcs, steps=steps)
    trainer.train()
    return trainer


async def judge(response: str, ground_truth: str, extra_info: dict[str, Any]) -> float:
    assert extra_info["level"] == 1
    return sum(given == wanted for given, wanted in zip(response, ground_truth, strict=False)) + 0.01 * len(response)


def test_every_completion_of_a_training_run_is_judged_once_by_the_agent(make: Any, logged: Any) -> None:
    agent = rf.RewardAgent(judge, max_concurrency=8)
    reward = agent.as_batch_function(group_size=GROUP_SIZE)
    trainer = trained(make, reward)
    verdicts = agent.statistics().verdicts
    reward.close()
    assert (verdicts.submitted, verdicts.scored, verdicts.delivered) == (32, 32, 8)
    assert len(logged(trainer, f"rewards/{reward.__name__}/mean")) == 2


def test_a_failed_verdict_is_left_out_of_trls_means(make: Any, logged: Any) -> None:
    async def half(rollout: rf.Rollout) -> float:
        if rollout.index % 2:
            raise rf.ServiceError("no such key", retryable=False)
        return 7.0

    reward = rf.RewardAgent(half).as_batch_function(group_size=GROUP_SIZE)
    trainer = trained(make, reward, steps=1)
    reward.close()
    assert logged(trainer, f"rewards/{reward.__name__}/mean") == [7.0]


def test_an_exception_in_a_function_of_trls_own_ends_its_run(make: Any, logged: Any) -> None:
    def broken(completions: Sequence[str], **columns: Any) -> list[float]:
        raise ValueError("nobody at home")

    with pytest.raises(ValueError, match="nobody at home"):
        trained(make, broken, steps=1)
