"""The fakes keep the promises of the protocols, on the running loop's time."""

from __future__ import annotations

import asyncio

from rewardflow import clock
from rewardflow.flow.fakes import CentredScores, FakeGenerator, FakePrompts, FakeTrainer
from rewardflow.flow.protocols import Advantages, Generator, PromptSource, Trainer
from rewardflow.flow.records import GroupRequest, Prompt, num_sampled_tokens
from rewardflow.types import Reward, Rollout, ScoredGroup


def test_prompts_that_come_back_go_out_next() -> None:
    prompts: PromptSource = FakePrompts()
    first = prompts.take(3)
    prompts.give_back(first[1:])
    assert [prompt.uid for prompt in prompts.take(4)] == ["1", "2", "3", "4"]


def test_a_generator_takes_its_time_for_each_rollout_and_stamps_the_version_it_started_with() -> None:
    async def main() -> tuple[list[Rollout], float]:
        generator: Generator = FakeGenerator(rollout_s=2.0, num_tokens=lambda request, index: 3 + index)
        await generator.publish(5)
        request = GroupRequest(number=7, step=6, prompt=Prompt(uid="a", text="?"), group_size=2)
        rollouts = [rollout async for rollout in generator.generate([request])]
        return rollouts, asyncio.get_running_loop().time()

    rollouts, ended_s = clock.run(main())
    assert [(one.group_id, one.index, one.step, one.policy_version) for one in rollouts] == [
        ("7", 0, 6, 5),
        ("7", 1, 6, 5),
    ]
    assert [num_sampled_tokens(one) for one in rollouts] == [3, 4]
    assert all(len(one.token_ids or ()) == len(one.response_mask or ()) == len(one.log_probs or ()) for one in rollouts)
    assert ended_s == 4.0


def test_a_trainer_says_which_weights_its_log_probs_come_from() -> None:
    async def main() -> list[object]:
        trainer: Trainer = FakeTrainer(log_probs_s=1.0)
        rollout = Rollout(group_id="0", response="")
        found: list[object] = list(await trainer.log_probs([rollout], "policy"))
        async with trainer.step(0):
            await trainer.optim_step()
        return [*found, *await trainer.log_probs([rollout] * 2, "reference")]

    assert clock.run(main()) == [("policy", 0), ("reference", 1), ("reference", 1)]


def test_scores_are_centred_over_those_that_did_not_fail() -> None:
    advantages: Advantages = CentredScores()
    rollouts = tuple(Rollout(group_id="0", index=i, group_size=3, response="") for i in range(3))
    rewards = (Reward(value=1.0), Reward(kind="timeout"), Reward(value=2.0))
    group = ScoredGroup(group_id="0", step=0, group_size=3, rollouts=rollouts, rewards=rewards)
    assert CentredScores()([group]) == [[-0.5, 0.0, 0.5]]
    assert advantages.needs == "group"
