"""Keeps the answers of calls that are not finished, for rewards that send several requests in one call of the agent.

Always true: an answer that was given is not asked for again when the agent retries the call. After a failure no further
request starts, the running ones end, and the call fails with the first error.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

from rewardflow.types import Rollout

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MAX_CALLS = 1024


class UnfinishedCalls(Generic[K, V]):
    """The answers of unfinished calls, by the rollouts of a call and by what was asked; the oldest are forgotten."""

    def __init__(self) -> None:
        self._by_call: OrderedDict[bytes, dict[K, V]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_call)

    def of_call(self, rollouts: Sequence[Rollout]) -> dict[K, V]:
        """Returns what is known for the call about these rollouts; pass it to `fill_missing`."""
        known = self._by_call.setdefault(_key(rollouts), {})
        while len(self._by_call) > MAX_CALLS:
            self._by_call.popitem(last=False)
        return known

    def finish(self, rollouts: Sequence[Rollout]) -> None:
        """Forgets the call about these rollouts."""
        self._by_call.pop(_key(rollouts), None)

    def clear(self) -> None:
        self._by_call.clear()


async def fill_missing(
    keys: Sequence[K], known: dict[K, V], answer: Callable[[K], Awaitable[V]], parallel: int
) -> None:
    """Answers every key that `known` lacks, `parallel` at a time."""
    slots = asyncio.Semaphore(parallel)
    failures: list[Exception] = []

    async def fill(key: K) -> None:
        async with slots:
            if failures or key in known:
                return
            try:
                known[key] = await answer(key)
            except Exception as error:  # from any client: the agent classifies it; a task group would wrap it
                failures.append(error)

    async with asyncio.TaskGroup() as tasks:
        for key in keys:
            tasks.create_task(fill(key))
    if failures:
        raise failures[0]


def _key(rollouts: Sequence[Rollout]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for rollout in rollouts:
        for part in (str(rollout.place), rollout.prompt, rollout.response):
            data = part.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "big") + data)
    return digest.digest()
