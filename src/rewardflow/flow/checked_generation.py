"""Asks a generator for rollouts, and takes no others.

Always true: every rollout that was asked for comes out once, and nothing else does; a generator that breaks this is an
error, and one that is not listened to any longer is closed.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence

from rewardflow.errors import FlowError
from rewardflow.flow.protocols import Generator
from rewardflow.flow.records import GroupRequest
from rewardflow.types import Rollout


async def rollouts_asked_for(generator: Generator, requests: Sequence[GroupRequest]) -> AsyncGenerator[Rollout]:
    """Each as soon as it has ended. Close it."""
    asked = {request.group_id: request for request in requests}
    missing = {(request.group_id, i) for request in requests for i in range(request.group_size)}
    async with contextlib.aclosing(generator.generate(requests)) as rollouts:
        async for rollout in rollouts:
            if (rollout.group_id, rollout.index) not in missing or not _is_as_asked(rollout, asked[rollout.group_id]):
                one = next(iter(requests))
                raise FlowError(
                    f"a generator must give each rollout that was asked for once, with step={one.step} and "
                    f"group_size={one.group_size}, got group {rollout.group_id!r}, index {rollout.index}, "
                    f"step={rollout.step}, group_size={rollout.group_size}"
                )
            missing.remove((rollout.group_id, rollout.index))
            yield rollout
    if missing:
        raise FlowError(f"a generator must give every rollout that was asked for, got none for {sorted(missing)[:5]}")


def _is_as_asked(rollout: Rollout, request: GroupRequest) -> bool:
    return rollout.step == request.step and rollout.group_size == request.group_size
