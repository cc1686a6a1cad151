"""Keeps the answers of calls that are not finished, for rewards that send several requests in one call of the agent.

Always true: an answer that was given is not asked for again when the agent retries the call, however many calls are in
flight, unless the answers of failed calls fill `MAX_BYTES`. After a failure no further request starts, the running ones
end, and the call fails with the first error.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Generic, TypeVar

from rewardflow.types import Rollout

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MAX_BYTES = 256_000_000
_CALL_BYTES = 500  # about what a call takes beside its answers


@dataclass(slots=True, eq=False)
class _RunningCall(Generic[K, V]):
    known: dict[K, V]
    num_attempts: int = 0  # that run now: two if the agent hedges
    is_finished: bool = False


@dataclass(frozen=True, slots=True)
class _FailedCall(Generic[K, V]):
    known: dict[K, V]
    num_bytes: int


class UnfinishedCalls(Generic[K, V]):
    """The answers of unfinished calls, by the rollouts of a call and by what was asked.

    Attempts at one call that run at the same time share its answers. Calls that run are always known; of those that
    failed and are not tried again, the oldest are forgotten once their answers take more than `max_bytes`.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._running: dict[bytes, _RunningCall[K, V]] = {}
        self._failed: OrderedDict[bytes, _FailedCall[K, V]] = OrderedDict()
        self._num_bytes = 0  # of the failed ones

    def __len__(self) -> int:
        return len(self._running) + len(self._failed)

    @contextlib.contextmanager
    def of_call(self, rollouts: Sequence[Rollout]) -> Iterator[dict[K, V]]:
        """Gives what is known for the call about these rollouts, for `fill_missing`; keeps it if the block fails."""
        key = _key(rollouts)
        call = self._running.get(key)
        if call is None:
            call = self._running[key] = _RunningCall(self._take(key))
        call.num_attempts += 1
        try:
            yield call.known
            call.is_finished = True
        finally:
            call.num_attempts -= 1
            if call.num_attempts == 0 and self._running.pop(key, None) is call and not call.is_finished:
                self._keep(key, call.known)

    def clear(self) -> None:
        self._running.clear()
        self._failed.clear()
        self._num_bytes = 0

    def _take(self, key: bytes) -> dict[K, V]:
        failed = self._failed.pop(key, None)
        if failed is None:
            return {}
        self._num_bytes -= failed.num_bytes
        return failed.known

    def _keep(self, key: bytes, known: dict[K, V]) -> None:
        if not known:
            return
        failed = _FailedCall(known, _CALL_BYTES + _num_bytes(known))
        self._failed[key] = failed
        self._num_bytes += failed.num_bytes
        while self._num_bytes > self._max_bytes:
            _, oldest = self._failed.popitem(last=False)
            self._num_bytes -= oldest.num_bytes


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


def _num_bytes(value: object) -> int:
    """Returns about how many bytes a value takes, with everything in it."""
    inside: Iterable[object] = ()
    if isinstance(value, Mapping):
        inside = (*value.keys(), *value.values())
    elif isinstance(value, list | tuple):
        inside = value
    elif is_dataclass(value):
        inside = [getattr(value, field.name) for field in fields(value)]
    return sys.getsizeof(value) + sum(map(_num_bytes, inside))
