"""A generator whose weights are given by name, one at a time, by a trainer that has them in another form.

Always true: publishing gives every weight of the model, each once, or fails; nobody holds more than one weight twice;
it happens while neither side computes, because the loop holds both devices for it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from rewardflow.errors import InvalidInput
from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.protocols import Generator
from rewardflow.flow.records import GroupRequest
from rewardflow.types import Rollout

if TYPE_CHECKING:
    from torch import Tensor, nn

NamedTensors = Iterable[tuple[str, "Tensor"]]


class NamedWeights:
    """`engine` generates with `model`, which publishing fills with what `weights` gives, on the thread `thread`."""

    def __init__(
        self, engine: Generator, *, weights: Callable[[], NamedTensors], model: nn.Module, thread: DeviceThread
    ) -> None:
        self._engine = engine
        self._weights = weights
        self._model = model
        self._thread = thread

    def generate(self, requests: Sequence[GroupRequest]) -> AsyncGenerator[Rollout]:
        return self._engine.generate(requests)

    async def publish(self, version: int) -> None:
        await self._thread.run(lambda: copy_named(self._weights(), self._model))
        await self._engine.publish(version)


@torch.no_grad()
def copy_named(weights: NamedTensors, model: nn.Module) -> None:
    """Into the model's own tensors. Weights that are tied have one name."""
    missing = dict(model.named_parameters())
    for name, weight in weights:
        if name not in missing:
            raise InvalidInput(f"published weights must be the generator's, each once, got {name}")
        missing.pop(name).copy_(weight)
    if missing:
        raise InvalidInput(f"published weights must be all of the generator's, got none for {', '.join(missing)}")
