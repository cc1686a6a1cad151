"""The state of a run at a boundary between two steps: taken into memory, written to a directory, put back.

    state/            weights and optimizer state of policy and critic, as torch.distributed.checkpoint writes them
    random.safetensors
    progress.json     the position in the prompts, and other values that change from step to step
    rollouts.*        steps that were generated and not trained
    validation/       the same for versions whose validation awaits verdicts, if any

Always true: a run that resumes from this state does what the saved run would have done next.
The learning rate is not saved: it is a function of the step's number.
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
from rewardflow.checkpoint.model_state import State, copied, write_state
from rewardflow.checkpoint.open_rollouts import write_rollouts
from rewardflow.errors import CheckpointError
from rewardflow.flow.records import Boundary
from rewardflow.observe.nesting import read_json
from rewardflow.observe.private_file import write_private

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch import Tensor

STATE_FOLDER = "state"
RANDOM_FILE = "random.safetensors"
PROGRESS_FILE = "progress.json"


class Writable(Protocol):
    """Weights, optimizer state and random numbers in memory, in this process or in others."""

    def write(self, folder: Path) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state in memory. Later steps of the run do not change it."""

    boundary: Boundary
    progress: Mapping[str, Any]  # plain JSON
    weights: Writable

    def write(self, folder: Path) -> None:
        self.weights.write(folder)
        write_private(folder / PROGRESS_FILE, json.dumps(self.progress).encode() + b"\n")
        write_rollouts(self.boundary.open_steps, folder)
        if self.boundary.validations:
            (folder / VALIDATION_FOLDER).mkdir(mode=0o700)
            write_rollouts(self.boundary.validations, folder / VALIDATION_FOLDER)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenWeights:
    """The weights, optimizer state and random numbers of this process, in host memory."""

    state: State
    random: Mapping[str, Tensor]

    @classmethod
    def of(cls, state: State, device: torch.device) -> TakenWeights:
        """Copies `state` and the random numbers of the CPU and of `device`."""
        return cls(state=copied(state), random=random_state.taken(device))

    def write(self, folder: Path, *, group: dist.ProcessGroup | None = None) -> None:
        """Writes this rank's shards; all ranks call it together. The first rank writes its random numbers."""
        write_state(self.state, folder / STATE_FOLDER, group=group)
        if group is None or group.rank() == 0:
            write_private(folder / RANDOM_FILE, safetensors.torch.save(dict(self.random)))


def put_back_random(folder: Path, device: torch.device) -> None:
    """Sets the random numbers of the CPU and of `device` to those that `TakenWeights.write` wrote."""
    try:
        states = safetensors.torch.load((folder / RANDOM_FILE).read_bytes())
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{folder / RANDOM_FILE} cannot be read: {error}") from error
    random_state.put_back(states, device)


def read_progress(folder: Path) -> dict[str, Any]:
    try:
        progress: dict[str, Any] = read_json((folder / PROGRESS_FILE).read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / PROGRESS_FILE} cannot be read: {error}") from error
    return progress
