"""Generates rollouts and checks that they are exactly the requested ones.

Always true: every requested rollout comes out once, and no other does; a generator that breaks this rule raises an
error; the generator is closed when the caller stops iterating.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence

from rewardflow.errors import FlowError
from rewardflow.flow.protocols import Generator
from rewardflow.flow.records import GroupRequest
from rewardflow.types import Rollout


async def generate_checked(generator: Generator, requests: Sequence[GroupRequest]) -> AsyncGenerator[Rollout]:
    """Yields each rollout as soon as it ends. The caller must close this generator."""
    by_group = {request.group_id: request for request in requests}
    missing = {(request.group_id, i) for request in requests for i in range(request.group_size)}
    async with contextlib.aclosing(generator.generate(requests)) as rollouts:
        async for rollout in rollouts:
            if (rollout.group_id, rollout.index) not in missing or not _fits(rollout, by_group[rollout.group_id]):
                one = next(iter(requests))
                raise FlowError(
                    f"a generator must give each requested rollout once, with step={one.step} and "
                    f"group_size={one.group_size}, got group {rollout.group_id!r}, index {rollout.index}, "
                    f"step={rollout.step}, group_size={rollout.group_size}"
                )
            missing.remove((rollout.group_id, rollout.index))
            yield rollout
    if missing:
        raise FlowError(f"a generator must give every requested rollout, got none for {sorted(missing)[:5]}")


def _fits(rollout: Rollout, request: GroupRequest) -> bool:
    return rollout.step == request.step and rollout.group_size == request.group_size
