"""Reproduces how the original recipe scheduled its calls, with wrappers around a generator and a reward.

Always true: the loop and the agent are ours, unchanged; the wrappers only delay. In the original, reward calls start
when the whole batch is generated; the agent works on one batch at a time, so no call of the next batch starts before
the last call of this one has ended; and calls within a batch are not ordered by group (`OriginalThreadPool`).
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

from rewardflow.flow.protocols import Generator
from rewardflow.flow.records import GroupRequest
from rewardflow.types import Rollout


class ScoresRollouts(Protocol):
    async def compute_score(self, rollout: Rollout) -> float: ...


class WholeBatchGenerator:
    """A generator that yields all rollouts when the last has ended, sorted by prompt and response."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    async def generate(self, requests: Sequence[GroupRequest]) -> AsyncGenerator[Rollout]:
        async with aclosing(self._generator.generate(requests)) as generated:
            rollouts = [rollout async for rollout in generated]
        for rollout in sorted(rollouts, key=lambda rollout: (int(rollout.group_id), rollout.index)):
            yield rollout

    async def publish(self, version: int) -> None:
        await self._generator.publish(version)


class OneBatchReward:
    """A reward that starts no call of a step before the last step is over. A waiting call holds its slot.

    That costs nothing: calls of a later step get slots only when all calls of the earlier step have theirs.
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


class OriginalThreadPool:
    """The original's thread pool: it works on one batch at a time, and calls in an order that ignores groups.

    It has its own slots, so the agent must not limit calls. A batch starts when the last of its calls has arrived,
    which is at once if the generator yields the batch as a whole.
    """

    def __init__(self, reward: ScoresRollouts, *, slots: int, calls_per_step: int, seed: int = 0) -> None:
        self._reward = reward
        self._num_free = slots
        self._calls_per_step = calls_per_step
        self._rng = random.Random(seed)
        self._step = 0
        self._num_ended = 0
        self._num_arrived: Counter[int] = Counter()
        self._waiting: list[tuple[int, float, asyncio.Future[None]]] = []

    async def compute_score(self, rollout: Rollout) -> float:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (rollout.step, self._rng.random(), turn))
        self._num_arrived[rollout.step] += 1
        self._start()
        await turn
        try:
            return await self._reward.compute_score(rollout)
        finally:
            self._ended()

    def _ended(self) -> None:
        self._num_free += 1
        self._count_end()
        self._start()

    def _count_end(self) -> None:
        self._num_ended += 1
        if self._num_ended == self._calls_per_step:
            self._step, self._num_ended = self._step + 1, 0

    def _start(self) -> None:
        """Gives free slots to the current batch. A call that was cancelled while it waited needs no slot."""
        while self._waiting and self._waiting[0][0] == self._step:
            if self._num_arrived[self._step] < self._calls_per_step:
                return
            is_cancelled = self._waiting[0][2].done()
            if not is_cancelled and not self._num_free:
                return
            turn = heapq.heappop(self._waiting)[2]
            if is_cancelled:
                self._count_end()
            else:
                self._num_free -= 1
                turn.set_result(None)
