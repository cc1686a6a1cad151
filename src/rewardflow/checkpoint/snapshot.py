"""All that a run is at a boundary between two steps: taken into memory, written to a directory, put back.

    state/            weights and optimizer state of policy and critic, as torch.distributed.checkpoint writes them
    random.safetensors
    progress.json     where the prompts stand, and what else moves from step to step
    rollouts.*        the steps that were generated and not trained
    validation/       the same of the versions whose validation awaits verdicts, if there are any

Always true: a run that goes on from what was put back does what the one that was saved would have done next.
The learning rate needs no place here: it is a function of the step's number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import safetensors.torch

from rewardflow.checkpoint import random_state
from rewardflow.checkpoint.manifest import VALIDATION_FOLDER
from rewardflow.checkpoint.model_state import State, copied, read_state, state_of, write_state
from rewardflow.checkpoint.rollout_file import write_rollouts
from rewardflow.errors import CheckpointError
from rewardflow.flow.records import Boundary

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer

STATE_FOLDER = "state"
CRITIC = "critic."  # before the names of its tensors
RANDOM_FILE = "random.safetensors"
PROGRESS_FILE = "progress.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """In host memory: nothing that happens to the run afterwards changes it."""

    boundary: Boundary
    progress: Mapping[str, Any]  # plain JSON
    state: State
    random: Mapping[str, Tensor]

    def write(self, folder: Path) -> None:
        write_state(self.state, folder / STATE_FOLDER)
        (folder / RANDOM_FILE).write_bytes(safetensors.torch.save(dict(self.random)))
        (folder / PROGRESS_FILE).write_text(json.dumps(self.progress) + "\n", "utf-8")
        write_rollouts(self.boundary.open_steps, folder)
        if self.boundary.validations:
            (folder / VALIDATION_FOLDER).mkdir()
            write_rollouts(self.boundary.validations, folder / VALIDATION_FOLDER)


class Learner(Protocol):
    """A critic, which has weights and an optimizer of its own."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def optimizer(self) -> Optimizer: ...


def take_snapshot(
    boundary: Boundary,
    *,
    model: nn.Module,
    optimizer: Optimizer,
    progress: Mapping[str, Any],
    critic: Learner | None = None,
) -> Snapshot:
    """Whoever computes must hold still meanwhile."""
    state = dict(state_of(model, optimizer))
    if critic is not None:
        state |= state_of(critic.model, critic.optimizer, owner=CRITIC)
    return snapshot_of(boundary, state, next(model.parameters()).device, progress)


def snapshot_of(boundary: Boundary, state: State, device: torch.device, progress: Mapping[str, Any]) -> Snapshot:
    """Of a trainer that puts its state together by itself."""
    return Snapshot(boundary=boundary, progress=progress, state=copied(state), random=random_state.taken(device))


def put_back_weights(folder: Path, *, model: nn.Module, optimizer: Optimizer, critic: Learner | None = None) -> None:
    """Weights, optimizer and random numbers."""
    read_state(folder / STATE_FOLDER, model, optimizer)
    if critic is not None:
        read_state(folder / STATE_FOLDER, critic.model, critic.optimizer, owner=CRITIC)
    put_back_random(folder, next(model.parameters()).device)


def put_back_random(folder: Path, device: torch.device) -> None:
    try:
        states = safetensors.torch.load((folder / RANDOM_FILE).read_bytes())
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{folder / RANDOM_FILE} cannot be read: {error}") from error
    random_state.put_back(states, device)


def read_progress(folder: Path) -> dict[str, Any]:
    try:
        progress: dict[str, Any] = json.loads((folder / PROGRESS_FILE).read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / PROGRESS_FILE} cannot be read: {error}") from error
    return progress
