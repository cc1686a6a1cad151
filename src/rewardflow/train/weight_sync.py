"""Copies a trainer's weights into a module that generates, weight by weight and by name.

Always true: a weight that the module does not have, or has in another shape, is an error and not a guess; a whole sync
gives every parameter once, or fails. At most one weight at a time exists a second time.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from rewardflow.errors import FlowError
from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.protocols import Generator
from rewardflow.flow.records import GroupRequest
from rewardflow.types import Rollout

if TYPE_CHECKING:
    from torch import Tensor, nn

NamedTensors = Iterable[tuple[str, "Tensor"]]

_MAX_NAMES = 3  # in an error message


class WeightCopier:
    """Copies weights into the parameters and buffers of `module`, in place, while nobody computes with it."""

    def __init__(self, module: nn.Module) -> None:
        self._targets: dict[str, Tensor] = dict((*module.named_parameters(), *module.named_buffers()))
        self._parameters = [name for name, _ in module.named_parameters()]

    @torch.no_grad()
    def put(self, name: str, weight: Tensor) -> None:
        """Copies one weight."""
        target = self._targets.get(name)
        if target is None or target.shape != weight.shape:
            found = "no weight of that name" if target is None else f"one of shape {tuple(target.shape)}"
            raise FlowError(
                "a published weight must be one of the generator's, "
                f"got {name} of shape {tuple(weight.shape)} for {found}"
            )
        target.copy_(weight)

    def put_all(self, weights: NamedTensors) -> None:
        """Copies weights that must include every parameter, each once; tied weights have one name."""
        seen: set[str] = set()
        for name, weight in weights:
            if name in seen:
                raise FlowError(f"a published weight must come once, got {name} of shape {tuple(weight.shape)} twice")
            seen.add(name)
            self.put(name, weight)
        missing = [name for name in self._parameters if name not in seen]
        if missing:
            named = ", ".join(f"{name} of shape {tuple(self._targets[name].shape)}" for name in missing[:_MAX_NAMES])
            others = f" and {len(missing) - _MAX_NAMES} others" if len(missing) > _MAX_NAMES else ""
            raise FlowError(f"published weights must be all of the generator's, got none for {named}{others}")


class SyncedGenerator:
    """A generator whose engine has its own copy of the weights: `publish` first copies the trainer's into it.

    `engine` generates with `model` on `thread`; `weights` gives the trainer's weights. Between two calls of `publish`
    the engine's weights do not change, and the loop holds both devices during the call, so neither side computes.
    """

    def __init__(
        self, engine: Generator, *, weights: Callable[[], NamedTensors], model: nn.Module, thread: DeviceThread
    ) -> None:
        self._engine = engine
        self._weights = weights
        self._copier = WeightCopier(model)
        self._thread = thread

    def generate(self, requests: Sequence[GroupRequest]) -> AsyncGenerator[Rollout]:
        return self._engine.generate(requests)

    async def publish(self, version: int) -> None:
        await self._thread.run(lambda: self._copier.put_all(self._weights()))
        await self._engine.publish(version)
