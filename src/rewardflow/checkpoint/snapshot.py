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
from rewardflow.checkpoint.open_rollouts import write_rollouts
from rewardflow.errors import CheckpointError
from rewardflow.flow.records import Boundary

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch import Tensor, nn
    from torch.optim import Optimizer

STATE_FOLDER = "state"
CRITIC = "critic."  # before the names of its tensors
RANDOM_FILE = "random.safetensors"
PROGRESS_FILE = "progress.json"


class Writable(Protocol):
    """Weights, optimizer and random numbers, in memory wherever they are."""

    def write(self, folder: Path) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """In memory: nothing that happens to the run afterwards changes it."""

    boundary: Boundary
    progress: Mapping[str, Any]  # plain JSON
    weights: Writable

    def write(self, folder: Path) -> None:
        self.weights.write(folder)
        (folder / PROGRESS_FILE).write_text(json.dumps(self.progress) + "\n", "utf-8")
        write_rollouts(self.boundary.open_steps, folder)
        if self.boundary.validations:
            (folder / VALIDATION_FOLDER).mkdir()
            write_rollouts(self.boundary.validations, folder / VALIDATION_FOLDER)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenWeights:
    """Of this process, in host memory."""

    state: State
    random: Mapping[str, Tensor]

    def write(self, folder: Path, *, group: dist.ProcessGroup | None = None) -> None:
        """On several ranks all of them call this, each with its shards; random numbers are those of the first."""
        write_state(self.state, folder / STATE_FOLDER, group=group)
        if group is None or group.rank() == 0:
            (folder / RANDOM_FILE).write_bytes(safetensors.torch.save(dict(self.random)))


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
    weights = take_weights(model=model, optimizer=optimizer, critic=critic)
    return Snapshot(boundary=boundary, progress=progress, weights=weights)


def take_weights(*, model: nn.Module, optimizer: Optimizer, critic: Learner | None = None) -> TakenWeights:
    state = dict(state_of(model, optimizer))
    if critic is not None:
        state |= state_of(critic.model, critic.optimizer, owner=CRITIC)
    return taken_weights(state, next(model.parameters()).device)


def taken_weights(state: State, device: torch.device) -> TakenWeights:
    """Of a trainer that puts its state together by itself."""
    return TakenWeights(state=copied(state), random=random_state.taken(device))


def put_back_weights(
    folder: Path,
    *,
    model: nn.Module,
    optimizer: Optimizer,
    critic: Learner | None = None,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Weights, optimizer and random numbers. On several ranks all of them call this."""
    read_state(folder / STATE_FOLDER, model, optimizer, group=group)
    if critic is not None:
        read_state(folder / STATE_FOLDER, critic.model, critic.optimizer, owner=CRITIC, group=group)
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
