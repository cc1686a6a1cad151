"""What every trainer can do, whichever back end it is built on: train, give its weights, be saved and put back.

Always true: a trainer computes on its own thread, with its own device as the current one; one step is open at a time,
and every update is part of a step; the learning rate depends on the step's number, not on the number of updates;
gradients that a step leaves unused are discarded; `take` after `put_back` gives the state that was put back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypedDict, TypeVar

import torch
from torch import Tensor

from rewardflow.checkpoint.model_state import State
from rewardflow.checkpoint.snapshot import STATE_FOLDER, TakenWeights, put_back_random
from rewardflow.errors import InvalidInput
from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.records import MicroBatch, UpdateReport
from rewardflow.policy.accelerator import on_device
from rewardflow.settings.run_settings import AlgorithmSettings, RunSettings, TrainerSettings
from rewardflow.train.accumulated import UpdateSums
from rewardflow.train.loss_terms import LossTerms
from rewardflow.train.update_tally import TrainerStatistics, UpdateTally
from rewardflow.types import Rollout

T = TypeVar("T")

CPU = torch.device("cpu")
COMPUTE_DTYPES = {None: None, "float32": None, "bfloat16": torch.bfloat16}


class TrainerArguments(TypedDict):
    """The arguments that all trainers share. `uses_old`: the loss compares with the policy before the first update."""

    trainer: TrainerSettings
    algorithm: AlgorithmSettings
    uses_old: bool
    temperature: float
    max_response_tokens: int
    total_steps: int
    thread: DeviceThread


def arguments_of(settings: RunSettings, thread: DeviceThread) -> TrainerArguments:
    """Reads the arguments from the settings of a run."""
    return TrainerArguments(
        trainer=settings.trainer,
        algorithm=settings.algorithm,
        uses_old=settings.schedule.has_several_updates and settings.algorithm.ratio_to == "old",
        temperature=settings.generation.temperature,
        max_response_tokens=settings.generation.max_response_tokens,
        total_steps=settings.steps,
        thread=thread,
    )


def compute_dtype_of(trainer: TrainerSettings) -> torch.dtype | None:
    """Returns the dtype that training computes in, if not in that of the weights, which are float32."""
    if trainer.autocast not in COMPUTE_DTYPES:
        raise InvalidInput(
            "training computes in float32 or bfloat16, because float16 needs its losses scaled, "
            f"got trainer.autocast={trainer.autocast}"
        )
    return COMPUTE_DTYPES[trainer.autocast]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRole:
    """The part that one rank plays among the ranks that train together. The defaults are those of a single rank."""

    replica: int = 0  # which share of a micro-batch's samples the rank is given
    num_replicas: int = 1
    speaks: bool = True  # the one rank of its replica whose log-probs and values are used
    sends_weights: bool = True  # sends what `weights_to_send` yields to engines; other ranks only help to gather it


class DeviceTrainer(ABC):
    """`async with trainer.step(0): await trainer.forward_backward(batch); await trainer.optim_step()`.

    This class holds the public methods and the order of a step; a subclass defines what they compute on the thread.
    On several ranks, all ranks call the same methods in the same order, those of one replica with the same samples.
    """

    role = RankRole()

    def __init__(
        self,
        device: torch.device,
        *,
        trainer: TrainerSettings,
        algorithm: AlgorithmSettings,
        uses_old: bool,
        temperature: float,
        max_response_tokens: int,
        total_steps: int,
        thread: DeviceThread,
    ) -> None:
        self._device = device
        self._settings = trainer
        self._autocast = compute_dtype_of(trainer)
        self._terms = LossTerms(algorithm=algorithm, uses_old=uses_old)
        self._temperature = temperature
        self._total_steps = total_steps
        self._thread = thread
        self._tally = UpdateTally(algorithm.aggregation, max_response_tokens)
        self._open_step: int | None = None

    def statistics(self) -> TrainerStatistics:
        return self._tally.statistics()

    @property
    @abstractmethod
    def lr(self) -> float: ...

    @asynccontextmanager
    async def step(self, number: int) -> AsyncIterator[None]:
        try:
            await self._run(partial(self._begin_step, number))
            yield
        finally:
            await self._run(partial(self._end_step, number))

    async def log_probs(self, rollouts: Sequence[Rollout], of: Literal["policy", "reference"]) -> Sequence[Tensor]:
        """For each rollout one float32 tensor on the CPU, with an entry for each sampled token."""
        return await self._run(partial(self._log_probs, rollouts, of))

    async def values(self, rollouts: Sequence[Rollout]) -> Sequence[Tensor]:
        """As `log_probs`: the reward that the critic expects before each sampled token."""
        return await self._run(partial(self._values, rollouts))

    async def forward_backward(self, batch: MicroBatch) -> None:
        await self._run(partial(self._forward_backward, batch))

    async def optim_step(self, token_share: float = 1.0) -> UpdateReport:
        return await self._run(partial(self._optim_step, token_share))

    async def take(self) -> TakenWeights:
        """Copies this rank's part of a checkpoint into host memory."""
        return await self._run(lambda: TakenWeights.of(self._state(), self._device))

    async def put_back(self, folder: Path) -> None:
        """Loads a checkpoint from any back end and any number of ranks."""
        await self._run(partial(self._put_back, folder))

    @abstractmethod
    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """Yields every weight under its name in transformers, whole, the same on every rank, one at a time.

        Parameters come in `dtype`, and buffers as they are. All ranks iterate together, each on its thread, while it
        computes nothing else.
        """

    @abstractmethod
    def weights_to_send(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """As `weights`, but over all ranks that send weights, each weight comes once."""

    async def _run(self, compute: Callable[[], T]) -> T:
        def on_own_device() -> T:
            with on_device(self._device):
                return compute()

        return await self._thread.run(on_own_device)

    # -- on the thread -----------------------------------------------------------------------------------------------

    def _put_back(self, folder: Path) -> None:
        self._read_state(folder / STATE_FOLDER)
        put_back_random(folder, self._device)
        self.rest()

    def _begin_step(self, number: int) -> None:
        if self._open_step is not None:
            raise InvalidInput(f"one step must end before the next begins, got {number} within {self._open_step}")
        self._open_step = number
        self._set_learning_rate(number)
        self._load(number)

    def _end_step(self, number: int) -> None:
        """Discards unused gradients and sets the next step's learning rate, also after a step without an update."""
        self._open_step = None
        self._clear_gradients()
        self._tally.forget()
        self._set_learning_rate(number + 1)
        self.rest()

    def _optim_step(self, token_share: float) -> UpdateReport:
        if self._open_step is None:
            raise InvalidInput(
                "an update is part of a step: call optim_step() within `async with trainer.step(number)`"
            )
        sums, grad_norm = self._update(token_share)
        return self._tally.told(sums, grad_norm=grad_norm, lr=self.lr, step=self._open_step)

    # -- on the thread: what differs between trainers ----------------------------------------------------------------

    @abstractmethod
    def rest(self) -> None:
        """With `offload`, moves what only training needs off the device, as between two steps."""

    @abstractmethod
    def _load(self, number: int) -> None:
        """Moves back to the device what `rest` took off it, for this step."""

    @abstractmethod
    def _set_learning_rate(self, number: int) -> None:
        """Sets the learning rate of this step."""

    @abstractmethod
    def _clear_gradients(self) -> None: ...

    @abstractmethod
    def _log_probs(self, rollouts: Sequence[Rollout], of: Literal["policy", "reference"]) -> list[Tensor]: ...

    def _values(self, rollouts: Sequence[Rollout]) -> list[Tensor]:
        raise InvalidInput("values need a critic, got critic=None")

    @abstractmethod
    def _forward_backward(self, batch: MicroBatch) -> None: ...

    @abstractmethod
    def _update(self, token_share: float) -> tuple[UpdateSums, float | None]:
        """Returns the sums over all ranks and the gradient's norm: None if there was nothing to change."""

    @abstractmethod
    def _state(self) -> State:
        """Returns this rank's weights and optimizer state by name, not copied. All ranks call it together."""

    @abstractmethod
    def _read_state(self, folder: Path) -> None:
        """Loads weights and optimizer state from the state folder of a checkpoint. All ranks call it together."""
