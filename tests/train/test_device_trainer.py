"""What every trainer does alike: where it computes, and in which order a step goes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import pytest
import torch
from tiny_training import batch, random_samples
from torch import Tensor

from rewardflow.errors import InvalidInput
from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.records import MicroBatch
from rewardflow.settings.run_settings import AlgorithmSettings, TrainerSettings
from rewardflow.train.accumulated import UpdateSums
from rewardflow.train.device_trainer import DeviceTrainer
from rewardflow.train.fsdp2.sharding import Ranks
from rewardflow.types import Rollout

SAMPLES = random_samples(6)


class Noting(DeviceTrainer):
    """Has no model: it counts, and notes what it was asked for and on which thread."""

    def __init__(self, **told: Any) -> None:
        super().__init__(torch.device("cpu"), **told)
        self.asked: list[str] = []
        self.threads: set[str] = set()

    @property
    def lr(self) -> float:
        return 0.5

    def rest(self) -> None:
        self._note("rest")

    def _load(self, number: int) -> None:
        self._note(f"load {number}")

    def _set_learning_rate(self, number: int) -> None:
        self._note(f"rate {number}")

    def _clear_gradients(self) -> None:
        self._note("clear")

    def _log_probs(self, rollouts: Sequence[Rollout], of: Literal["policy", "reference"]) -> list[Tensor]:
        self._note(f"log-probs of the {of}")
        return [torch.zeros(1) for _ in rollouts]

    def _forward_backward(self, batch: MicroBatch) -> None:
        self._note("passes")
        self._tally.take(batch)

    def _update(self) -> tuple[UpdateSums, float | None]:
        self._note("update")
        return self._tally.close(Ranks(self._device)), 2.0

    def _note(self, what: str) -> None:
        self.asked.append(what)
        self.threads.add(threading.current_thread().name)


@contextmanager
def noting(**fields: Any) -> Iterator[Noting]:
    with DeviceThread("trainer") as thread:
        yield Noting(
            trainer=TrainerSettings(**fields),
            algorithm=AlgorithmSettings(),
            uses_old=True,
            temperature=1.0,
            max_response_tokens=9,
            total_steps=10,
            thread=thread,
        )


def test_a_step_sets_its_rate_and_loads_first_and_forgets_sets_the_next_rate_and_rests_last() -> None:
    async def body(trainer: Noting) -> float:
        async with trainer.step(3):
            await trainer.log_probs([SAMPLES[0].rollout], "policy")
            await trainer.forward_backward(batch(SAMPLES))
            return (await trainer.optim_step()).grad_norm

    with noting() as trainer:
        assert asyncio.run(body(trainer)) == 2.0
    begun, ended = ["rate 3", "load 3"], ["clear", "rate 4", "rest"]
    assert trainer.asked == [*begun, "log-probs of the policy", "passes", "update", *ended]
    assert trainer.threads == {"rewardflow-trainer"}


def test_a_step_that_fails_ends_like_any_other_and_leaves_nothing_to_the_next() -> None:
    async def failing(trainer: Noting) -> None:
        async with trainer.step(0):
            await trainer.forward_backward(batch(SAMPLES))
            raise ZeroDivisionError

    async def body(trainer: Noting) -> int:
        with pytest.raises(ZeroDivisionError):
            await failing(trainer)
        async with trainer.step(0):
            return (await trainer.optim_step()).num_sequences

    with noting() as trainer:
        assert asyncio.run(body(trainer)) == 0
    assert trainer.asked[3:6] == ["clear", "rate 1", "rest"]


def test_nothing_is_trained_in_float16() -> None:
    with (
        pytest.raises(InvalidInput, match=r"float32 or bfloat16, .* got trainer\.autocast=float16"),
        noting(autocast="float16"),
    ):
        pass
