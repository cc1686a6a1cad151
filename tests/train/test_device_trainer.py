"""What every trainer does alike: where it computes, and in which order a step goes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from tiny_training import batch, random_samples
from torch import Tensor

from rewardflow.checkpoint.model_state import SavedState, State
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
        self.weight = torch.zeros(2)

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

    def _update(self, token_share: float) -> tuple[UpdateSums, float | None]:
        self._note("update")
        return self._tally.close(Ranks(self._device)), 2.0

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        yield "weight", self.weight

    def weights_to_send(self) -> Iterator[tuple[str, Tensor]]:
        return self.weights()

    def _state(self) -> State:
        self._note("state")
        return {"model.weight": self.weight}

    def _read_state(self, folder: Path) -> None:
        self._note(f"read {folder.name}")
        SavedState(folder).fill({"model.weight": self.weight})

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


def test_a_trainer_is_put_back_as_it_was_when_taken_with_its_random_numbers_and_rests(tmp_path: Path) -> None:
    with noting() as trainer:
        taken = asyncio.run(trainer.take())
        drawn = torch.rand(2)
        trainer.weight.add_(1.0)
        taken.write(tmp_path)
        asyncio.run(trainer.put_back(tmp_path))
        assert torch.equal(trainer.weight, torch.zeros(2))
        assert torch.equal(torch.rand(2), drawn)
    assert trainer.asked == ["state", "read state", "rest"]
    assert trainer.threads == {"rewardflow-trainer"}


def test_a_trainer_without_a_critic_has_no_values() -> None:
    with noting() as trainer, pytest.raises(InvalidInput, match="values need a critic, got critic=None"):
        asyncio.run(trainer.values([SAMPLES[0].rollout]))


def test_nothing_is_trained_in_float16() -> None:
    with (
        pytest.raises(InvalidInput, match=r"float32 or bfloat16, .* got trainer\.autocast=float16"),
        noting(autocast="float16"),
    ):
        pass
