"""What trainers on torch have in common: the verbs of the flow's `Trainer`, and the order of a step.

Always true: whatever a trainer computes, it computes on its thread and with its own device as the current one; one step
is open at a time, and every update is part of one; the learning rate is a function of the step's number, however many
updates it had; what a step did not use is not the next one's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal, TypedDict, TypeVar

import torch
from torch import Tensor

from rewardflow.errors import InvalidInput
from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.records import MicroBatch, UpdateReport
from rewardflow.settings.run_settings import AlgorithmSettings, RunSettings, TrainerSettings
from rewardflow.train.accumulated import UpdateSums
from rewardflow.train.loss_terms import LossTerms
from rewardflow.train.update_tally import TrainerStatistics, UpdateTally
from rewardflow.types import Rollout

T = TypeVar("T")

CPU = torch.device("cpu")
COMPUTE_DTYPES = {None: torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16}


class TrainerArguments(TypedDict):
    """What every trainer is told. `uses_old` is `schedule.needs_old_log_probs`."""

    trainer: TrainerSettings
    algorithm: AlgorithmSettings
    uses_old: bool
    temperature: float
    max_response_tokens: int
    total_steps: int
    thread: DeviceThread


def arguments_of(settings: RunSettings, thread: DeviceThread) -> TrainerArguments:
    """As the settings of a run describe them."""
    return TrainerArguments(
        trainer=settings.trainer,
        algorithm=settings.algorithm,
        uses_old=settings.schedule.needs_old_log_probs,
        temperature=settings.generation.temperature,
        max_response_tokens=settings.generation.max_response_tokens,
        total_steps=settings.steps,
        thread=thread,
    )


class DeviceTrainer(ABC):
    """`async with trainer.step(0): await trainer.forward_backward(batch); await trainer.optim_step()`.

    Here are the verbs, and when in a step what happens; a subclass says what they compute on the thread.
    """

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
        if trainer.autocast not in COMPUTE_DTYPES:
            raise InvalidInput(
                "training computes in float32 or bfloat16, because float16 needs its losses scaled, "
                f"got trainer.autocast={trainer.autocast}"
            )
        self._device = device
        self._settings = trainer
        self._compute_dtype = COMPUTE_DTYPES[trainer.autocast]
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

    async def forward_backward(self, batch: MicroBatch) -> None:
        await self._run(partial(self._forward_backward, batch))

    async def optim_step(self) -> UpdateReport:
        return await self._run(self._optim_step)

    async def _run(self, compute: Callable[[], T]) -> T:
        def on_own_device() -> T:
            with torch.accelerator.device_index(self._device.index):  # which device is current is per thread
                return compute()

        return await self._thread.run(on_own_device)

    # -- on the thread -----------------------------------------------------------------------------------------------

    def _begin_step(self, number: int) -> None:
        if self._open_step is not None:
            raise InvalidInput(f"one step must end before the next begins, got {number} within {self._open_step}")
        self._open_step = number
        self._set_learning_rate(number)
        self._load(number)

    def _end_step(self, number: int) -> None:
        """The rate is the next step's, however many updates there were; what was not stepped on is forgotten."""
        self._open_step = None
        self._clear_gradients()
        self._tally.forget()
        self._set_learning_rate(number + 1)
        self.rest()

    def _optim_step(self) -> UpdateReport:
        if self._open_step is None:
            raise InvalidInput(
                "an update is part of a step: call optim_step() within `async with trainer.step(number)`"
            )
        sums, grad_norm = self._update()
        return self._tally.told(sums, grad_norm=grad_norm, lr=self.lr, step=self._open_step)

    # -- on the thread: what differs between trainers ----------------------------------------------------------------

    @abstractmethod
    def rest(self) -> None:
        """As between two steps: with `offload`, what only training needs is off the device."""

    @abstractmethod
    def _load(self, number: int) -> None:
        """What `rest` took off the device is back, for this step."""

    @abstractmethod
    def _set_learning_rate(self, number: int) -> None:
        """To that of this step."""

    @abstractmethod
    def _clear_gradients(self) -> None: ...

    @abstractmethod
    def _log_probs(self, rollouts: Sequence[Rollout], of: Literal["policy", "reference"]) -> list[Tensor]: ...

    @abstractmethod
    def _forward_backward(self, batch: MicroBatch) -> None: ...

    @abstractmethod
    def _update(self) -> tuple[UpdateSums, float | None]:
        """What all ranks have added up, and the gradient's norm: None if nothing was to change."""
