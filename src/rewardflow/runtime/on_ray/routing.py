"""Which engine generates which groups: whoever is done sooner is given more.

Always true: every group goes to one engine, once, in order; no engine has more rollouts at a time than it has room for,
unless one group alone is more; where there are few groups all engines get about as many.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from rewardflow.flow.records import GroupRequest
from rewardflow.runtime.on_ray.merging import in_batches
from rewardflow.settings.run_settings import GenerationSettings
from rewardflow.types import Rollout

# What an engine generates for some groups, in batches.
Stream = Callable[[int, Sequence[GroupRequest]], AsyncGenerator[list[Rollout]]]

_LANES = 8  # when one of these is done, an eighth of the room is free
_ROOM_FACTOR = 2  # as many again as are decoded together, so that none of these places is empty for long


@dataclass(frozen=True, slots=True)
class Routing:
    """An engine has `lanes` calls at a time, with `room` rollouts in all of them together; None: with its whole share.

    Engines that decode what they are given as one batch have one lane.
    """

    lanes: int = 1
    room: int | None = None

    @classmethod
    def of(cls, generation: GenerationSettings) -> Routing:
        if generation.engine == "vllm":
            return cls(lanes=_LANES, room=_ROOM_FACTOR * generation.max_sequences)
        return cls()

    def groups_a_call(self, requests: Sequence[GroupRequest], num_engines: int) -> int:
        share = math.ceil(len(requests) / (num_engines * self.lanes))
        if self.room is None:
            return share
        largest = max(request.group_size for request in requests)
        return max(1, min(share, self.room // self.lanes // largest))


async def routed(
    requests: Sequence[GroupRequest], num_engines: int, stream: Stream, routing: Routing
) -> AsyncGenerator[Rollout]:
    """Each rollout when its engine has told of it. Close it to stop what is being generated."""
    if not requests:
        return
    left = deque(requests)
    num_groups = routing.groups_a_call(requests, num_engines)
    lanes = [_lane(engine, left, num_groups, stream) for _ in range(routing.lanes) for engine in range(num_engines)]
    async with contextlib.aclosing(in_batches(lanes)) as batches:
        async for batch in batches:
            for rollouts in batch:
                for rollout in rollouts:
                    yield rollout


async def _lane(
    engine: int, left: deque[GroupRequest], num_groups: int, stream: Stream
) -> AsyncGenerator[list[Rollout]]:
    """One call after another, for as long as there are groups that nobody has."""
    while left:
        part = tuple(left.popleft() for _ in range(min(num_groups, len(left))))
        async with contextlib.aclosing(stream(engine, part)) as batches:
            async for rollouts in batches:
                yield rollouts
