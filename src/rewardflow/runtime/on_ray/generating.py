"""What an actor that generates answers, be it a rank or a generator.

Always true: both stream rollouts in messages, and name versions, in the same way.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence

from rewardflow.flow.records import GroupRequest
from rewardflow.runtime.on_ray.actor_failures import telling, telling_stream
from rewardflow.runtime.on_ray.engine_pair import EnginePair, Purpose
from rewardflow.runtime.on_ray.vllm_pair import VllmPair
from rewardflow.types import Rollout


class GeneratingActor:
    """`_engines` is set when the actor has opened; None in a rank that only trains."""

    _engines: EnginePair | VllmPair | None = None

    @telling_stream
    async def generate(self, requests: Sequence[GroupRequest], purpose: Purpose) -> AsyncGenerator[list[Rollout]]:
        assert self._engines is not None
        async with contextlib.aclosing(self._engines.generate(requests, purpose)) as batches:
            async for batch in batches:
                yield batch

    @telling
    async def name_version(self, version: int, purpose: Purpose) -> None:
        assert self._engines is not None
        await self._engines.name_version(version, purpose)
