"""What the original did otherwise, as wrappers round the seams of our loop, so that both can be compared.

Always true: the loop and the agent are ours, unchanged; the wrappers only hold things back. Its reward calls start when
the whole batch is generated, in the order of the batch; and its agent works on one batch at a time: no call of the next
starts before the last of this one has ended.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

from rewardflow.flow.records import GroupRequest
from rewardflow.flow.seams import Generator
from rewardflow.types import Rollout


class ScoresRollouts(Protocol):
    async def compute_score(self, rollout: Rollout) -> float: ...


class WholeBatch:
    """A generator that hands rollouts over when the last has ended, the responses to a prompt side by side."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    async def generate(self, requests: Sequence[GroupRequest]) -> AsyncGenerator[Rollout]:
        async with aclosing(self._generator.generate(requests)) as generated:
            rollouts = [rollout async for rollout in generated]
        for rollout in sorted(rollouts, key=lambda rollout: (int(rollout.group_id), rollout.index)):
            yield rollout

    async def publish(self, version: int) -> None:
        await self._generator.publish(version)


class OneBatchAtATime:
    """A reward that starts nothing of a step before the step before is over. It holds its slot meanwhile.

    That costs nothing: calls of a later step get slots only when all of the earlier one have theirs.
    """

    def __init__(self, reward: ScoresRollouts, *, calls_per_step: int) -> None:
        self._reward = reward
        self._calls_per_step = calls_per_step
        self._num_ended: Counter[int] = Counter()
        self._is_over: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)

    async def compute_score(self, rollout: Rollout) -> float:
        if rollout.step > 0:
            await self._is_over[rollout.step - 1].wait()
        try:
            return await self._reward.compute_score(rollout)
        finally:
            self._num_ended[rollout.step] += 1
            if self._num_ended[rollout.step] == self._calls_per_step:
                self._is_over[rollout.step].set()
