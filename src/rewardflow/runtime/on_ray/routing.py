"""Spreads groups over engines: an engine that is done sooner gets more.

Always true: every group goes to one engine, once, in order; no engine has more rollouts at a time than it has room for,
unless one group alone is more; where there are few groups all engines get about as many.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence

from rewardflow.flow.records import GroupRequest
from rewardflow.generate.engines import Routing
from rewardflow.runtime.on_ray.merging import in_batches
from rewardflow.types import Rollout

# Yields what the engine of this number generates for some groups, in batches.
Stream = Callable[[int, Sequence[GroupRequest]], AsyncGenerator[list[Rollout]]]


async def routed(
    requests: Sequence[GroupRequest], num_engines: int, stream: Stream, routing: Routing
) -> AsyncGenerator[Rollout]:
    """Yields each rollout when its engine has sent it. Closing it stops all engines."""
    if not requests:
        return
    left = deque(requests)
    num_groups = _groups_a_call(requests, num_engines, routing)
    lanes = [_lane(engine, left, num_groups, stream) for _ in range(routing.lanes) for engine in range(num_engines)]
    async with contextlib.aclosing(in_batches(lanes)) as batches:
        async for batch in batches:
            for rollouts in batch:
                for rollout in rollouts:
                    yield rollout


async def _lane(
    engine: int, left: deque[GroupRequest], num_groups: int, stream: Stream
) -> AsyncGenerator[list[Rollout]]:
    """Makes one call after another, for as long as groups are left."""
    while left:
        part = tuple(left.popleft() for _ in range(min(num_groups, len(left))))
        async with contextlib.aclosing(stream(engine, part)) as batches:
            async for rollouts in batches:
                yield rollouts


def _groups_a_call(requests: Sequence[GroupRequest], num_engines: int, routing: Routing) -> int:
    share = math.ceil(len(requests) / (num_engines * routing.lanes))
    if routing.room is None:
        return share
    largest = max(request.group_size for request in requests)
    return max(1, min(share, routing.room // routing.lanes // largest))
