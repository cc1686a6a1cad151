"""Finds the back end that `trainer.backend` names, and says what every back end must offer.

A back end is a folder beside this module, named as in the settings, whose `backend.py` has a `BACKEND`. Its name and
the rules that the settings need are one line in `settings.sections.training.BACKENDS`.

Always true: no other module asks for a back end by name, or for the class of a trainer. Importing a `backend.py` loads
neither torch nor the back end's own packages.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from rewardflow.flow.device_thread import DeviceThread
from rewardflow.settings.run_settings import RunSettings

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from rewardflow.policy.load_policy import Policy
    from rewardflow.train.device_trainer import DeviceTrainer
    from rewardflow.train.memory_phase import MemoryPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBytes:
    """What training holds on a device, or on all ranks together; activations come on top."""

    weights: int
    gradients: int
    optimizer: int
    reference: int
    critic: int  # its weights and Adam's state
    critic_gradients: int


class TrainerBackend(Protocol):
    """What builds trainers of one kind."""

    trains_policy_model: bool
    """Whether a trainer updates the policy's own module; if not, it holds weights of its own in another form."""

    needs_process_group: bool
    """Whether a single rank needs a process group, too."""

    keeps_gradients: bool
    """Whether the room of gradients stays taken between steps."""

    def check_one_process(self, settings: RunSettings) -> None:
        """Raises `InvalidInput` if the back end is not installed or cannot train in one process with these settings."""

    def rehearse(self, settings: RunSettings, policy: Policy, thread: DeviceThread) -> None:
        """Finds the mistakes that show without weights. `policy` is an outline; the back end need not be installed."""

    def rehearse_memory(self, settings: RunSettings) -> tuple[MemoryPhase, ...]:
        """Measures the phases of one rank without weights or devices; empty if the back end cannot run so."""

    def held_by_rank(self, settings: RunSettings, policy: Policy, whole: HeldBytes) -> HeldBytes:
        """Calculates what one rank holds. `whole` is what a plain module holds in one process, `policy` an outline."""

    def describe_ranks(self, settings: RunSettings) -> str:
        """Explains how the settings make up the number of ranks; empty where the user gives the number itself."""

    def open_alone(
        self, settings: RunSettings, policy: Policy, thread: DeviceThread, device: torch.device
    ) -> AbstractContextManager[DeviceTrainer]:
        """Builds the trainer of a run in one process. The caller enters and leaves it on `thread`."""

    def prepare_rank(self) -> None:
        """Prepares a process that will be a rank, before anything is loaded; checks that the back end is installed."""

    def open_rank(
        self,
        settings: RunSettings,
        policy: Policy | None,
        thread: DeviceThread,
        device: torch.device,
        group: dist.ProcessGroup | None,
    ) -> AbstractContextManager[DeviceTrainer]:
        """Builds the trainer of one rank. All ranks enter it together, each on its thread.

        `group` has all ranks; it is None for a single rank of a back end that needs none. Without a policy, the rank
        reads its part of the weights itself; the only rank of a back end that trains the policy's module needs one.
        """


def backend_of(settings: RunSettings) -> TrainerBackend:
    """Returns the back end that the settings of a run name."""
    backend: TrainerBackend = import_module(f"rewardflow.train.{settings.trainer.backend}.backend").BACKEND
    return backend
