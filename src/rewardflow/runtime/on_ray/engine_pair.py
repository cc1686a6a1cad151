"""The engines of an actor: one that generates for training and, if the run is measured, one for that.

Always true: both have the same weights, so what was published to one is published to the other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.protocols import Generator
from rewardflow.flow.records import GroupRequest
from rewardflow.runtime.local import make_engine, make_validation_engine
from rewardflow.runtime.on_ray.merging import in_batches
from rewardflow.settings.run_settings import RunSettings
from rewardflow.types import Rollout

if TYPE_CHECKING:
    from rewardflow.generate.responses import EngineStatistics
    from rewardflow.policy.load_policy import Policy

Purpose = Literal["training", "validation"]

_PAUSE_S = 0.01  # between two messages, which cost about a tenth of it


async def in_messages(rollouts: AsyncGenerator[Rollout]) -> AsyncGenerator[list[Rollout]]:
    """A rollout goes at once, or with all others that end shortly after one has gone."""
    async with contextlib.aclosing(in_batches([rollouts])) as batches:
        async for batch in batches:
            yield batch
            await asyncio.sleep(_PAUSE_S)


class Engines:
    """What an actor generates with, by purpose."""

    def __init__(self, asked: Mapping[Purpose, Generator]) -> None:
        self._asked = asked

    async def generate(self, requests: Sequence[GroupRequest], purpose: Purpose) -> AsyncGenerator[list[Rollout]]:
        async with contextlib.aclosing(in_messages(self._asked[purpose].generate(requests))) as batches:
            async for batch in batches:
                yield batch

    async def name_version(self, version: int, purpose: Purpose) -> None:
        """What the weights are called from now on: the present ones, or those that vLLM was given."""
        await self._asked[purpose].publish(version)


class EnginePair(Engines):
    """On one policy of this process."""

    def __init__(self, settings: RunSettings, policy: Policy, thread: DeviceThread) -> None:
        self._training = make_engine(settings, policy, thread)
        asked: dict[Purpose, Generator] = {"training": self._training}
        if settings.validation is not None:
            asked["validation"] = make_validation_engine(settings, policy, thread)
        super().__init__(asked)

    def statistics(self) -> EngineStatistics:
        """Of training's engine."""
        return self._training.statistics()
