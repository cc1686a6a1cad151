"""A generator with weights of its own, which publishing copies from the trainer's.

Always true: between two publishings the generator's weights do not change, whatever the trainer does to its own; the
copy happens while neither side computes, because the loop holds both devices for it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.protocols import Generator
from rewardflow.flow.records import GroupRequest
from rewardflow.types import Rollout

if TYPE_CHECKING:
    from torch import Tensor, nn


class CopiedWeights:
    """`engine` generates with `copy`, a module of the same shape as `original`, on the thread `thread`."""

    def __init__(self, engine: Generator, *, original: nn.Module, copy: nn.Module, thread: DeviceThread) -> None:
        self._engine = engine
        self._original = original
        self._copy = copy
        self._thread = thread

    def generate(self, requests: Sequence[GroupRequest]) -> AsyncGenerator[Rollout]:
        return self._engine.generate(requests)

    async def publish(self, version: int) -> None:
        await self._thread.run(self._copy_weights)
        await self._engine.publish(version)

    @torch.no_grad()
    def _copy_weights(self) -> None:
        for mine, theirs in zip(_tensors(self._copy), _tensors(self._original), strict=True):
            mine.copy_(theirs)


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()
