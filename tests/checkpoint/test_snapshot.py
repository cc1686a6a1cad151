"""All of a run's state, taken and put back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from state_ranks import adam, model_of, step, weights

from rewardflow.checkpoint.model_state import read_state, state_of
from rewardflow.checkpoint.snapshot import STATE_FOLDER, Snapshot, TakenWeights, put_back_random, read_progress
from rewardflow.errors import CheckpointError
from rewardflow.flow.records import Boundary

torch.set_num_threads(1)


def test_weights_optimizer_and_random_numbers_are_as_they_were_when_taken_not_when_written(tmp_path: Path) -> None:
    model = model_of(seed=0)
    optimizer = adam(model)
    step(model, optimizer, seed=0)
    progress = {"cursor": {"epoch": 1}, "reward_kl_coef": 0.1 + 0.2}
    taken = TakenWeights.of(state_of(model, optimizer), torch.device("cpu"))
    snapshot = Snapshot(boundary=Boundary(next_step=1), progress=progress, weights=taken)
    drawn = torch.rand(3)
    step(model, optimizer, seed=1)
    snapshot.write(tmp_path)

    again = model_of(seed=9)
    other = adam(again)
    read_state(tmp_path / STATE_FOLDER, again, other)
    put_back_random(tmp_path, torch.device("cpu"))
    assert torch.equal(torch.rand(3), drawn)
    step(again, other, seed=1)
    assert torch.equal(weights(again), weights(model))
    assert read_progress(tmp_path) == progress


def test_a_directory_without_them_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"progress.json cannot be read"):
        read_progress(tmp_path)
    with pytest.raises(CheckpointError, match=r"random.safetensors cannot be read"):
        put_back_random(tmp_path, torch.device("cpu"))
