"""The calls that an actor with an engine answers, be it a rank or a generator.

Always true: both stream rollouts in messages, and receive and publish weights, in the same way.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any

from rewardflow.flow.records import GroupRequest
from rewardflow.generate.engines import Engine
from rewardflow.runtime.on_ray.actor_failures import FailureBoundary, telling
from rewardflow.runtime.on_ray.merging import in_batches
from rewardflow.runtime.on_ray.weight_buckets import WeightBucket
from rewardflow.types import Rollout

if TYPE_CHECKING:
    from rewardflow.generate.responses import EngineStatistics

_PAUSE_S = 0.01  # between two messages, which cost about a tenth of it


class GeneratingActor:
    """`_engine` is set when the actor has opened; None in a rank that only trains."""

    _engine: Engine | None = None

    @property
    def _entered_engine(self) -> Engine:
        assert self._engine is not None, "an actor must be opened with an engine first"
        return self._engine

    async def generate(self, requests: Sequence[GroupRequest]) -> AsyncGenerator[list[Rollout]]:
        """Yields a rollout at once, or with all others that end during the pause after a message."""
        with FailureBoundary():
            rollouts = self._entered_engine.generate(requests)
            async with contextlib.aclosing(in_batches([rollouts], pause_s=_PAUSE_S)) as messages:
                async for message in messages:
                    yield message

    @telling
    async def begin_generating(self) -> None:
        await self._entered_engine.begin_generating()

    @telling
    async def end_generating(self) -> None:
        await self._entered_engine.end_generating()

    @telling
    async def publish(self, version: int) -> None:
        await self._entered_engine.publish(version)

    @telling
    async def receive(self, bucket: WeightBucket) -> None:
        await self._entered_engine.receive(bucket.weights)

    @telling
    async def answer_sender(self, call: str, info: dict[str, Any]) -> None:
        """Called by a rank that sends weights to the engine's workers itself."""
        await self._entered_engine.answer_sender(call, info)

    @telling
    async def statistics(self) -> EngineStatistics:
        return self._entered_engine.statistics()
