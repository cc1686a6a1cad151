"""All of a run's state, taken and put back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from state_ranks import adam, model_of, step, weights

from rewardflow.checkpoint.snapshot import put_back_weights, read_progress, take_snapshot
from rewardflow.errors import CheckpointError, InvalidInput
from rewardflow.flow.records import Boundary

torch.set_num_threads(1)


def test_weights_optimizer_and_random_numbers_are_as_they_were_when_taken_not_when_written(tmp_path: Path) -> None:
    model = model_of(seed=0)
    optimizer = adam(model)
    step(model, optimizer, seed=0)
    progress = {"cursor": {"epoch": 1}, "reward_kl_coef": 0.1 + 0.2}
    snapshot = take_snapshot(Boundary(next_step=1), model=model, optimizer=optimizer, progress=progress)
    drawn = torch.rand(3)
    step(model, optimizer, seed=1)
    snapshot.write(tmp_path)

    again = model_of(seed=9)
    other = adam(again)
    put_back_weights(tmp_path, model=again, optimizer=other)
    assert torch.equal(torch.rand(3), drawn)
    step(again, other, seed=1)
    assert torch.equal(weights(again), weights(model))
    assert read_progress(tmp_path) == progress


@dataclass
class Critic:
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer


def test_a_critic_is_put_back_beside_the_policy_though_their_weights_have_the_same_names(tmp_path: Path) -> None:
    def learners(seed: int) -> tuple[Critic, Critic]:
        models = model_of(seed=seed), model_of(seed=seed + 1)
        policy, critic = (Critic(model, adam(model)) for model in models)
        return policy, critic

    policy, critic = learners(seed=0)
    step(policy.model, policy.optimizer, seed=0)
    step(critic.model, critic.optimizer, seed=1)
    taken = take_snapshot(
        Boundary(next_step=1), model=policy.model, optimizer=policy.optimizer, progress={}, critic=critic
    )
    taken.write(tmp_path)
    again, other = learners(seed=8)
    put_back_weights(tmp_path, model=again.model, optimizer=again.optimizer, critic=other)
    for one, expected in ((again, policy), (other, critic)):
        assert torch.equal(weights(one.model), weights(expected.model))
        for learner in (one, expected):
            step(learner.model, learner.optimizer, seed=2)
        assert torch.equal(weights(one.model), weights(expected.model))
    assert not torch.equal(weights(again.model), weights(other.model))


def test_a_checkpoint_without_a_critic_is_no_checkpoint_of_a_run_with_one(tmp_path: Path) -> None:
    model = model_of(seed=0)
    optimizer = adam(model)
    take_snapshot(Boundary(next_step=1), model=model, optimizer=optimizer, progress={}).write(tmp_path)
    with pytest.raises(InvalidInput, match="a checkpoint must be of the same model"):
        put_back_weights(tmp_path, model=model, optimizer=optimizer, critic=Critic(model, optimizer))


def test_a_directory_without_them_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"progress.json cannot be read"):
        read_progress(tmp_path)
