"""Lets an engine's GPU memory be the trainer's while nobody generates.

Always true: the engine sleeps only when nobody generates, and then at once; the trainer's cached memory is given back
before the engine wakes; weights are not kept while it sleeps: the trainer has them, and sends them when it wakes. A new
version does not wake it: after the last steps were generated, training would go on beside weights that nobody uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

Part = Literal["weights", "kv_cache"]  # of the engine's memory, as vLLM names them

_DISCARD = 2  # vLLM's level of sleep that keeps nothing; at level 1 it copies the weights to the host first


class Sleep:
    """`async with sleep.awake(): ...` for whoever generates; several may at a time.

    `llm` is vLLM's AsyncLLM, which is awake at first. `give_back` frees what the trainer's allocator keeps for later.
    `send_again` sends the engine the weights of its present version.
    """

    def __init__(
        self, llm: Any, *, give_back: Callable[[], Awaitable[None]], send_again: Callable[[], Awaitable[None]]
    ) -> None:
        self._llm = llm
        self._give_back = give_back
        self._send_again = send_again
        self._asleep: frozenset[Part] = frozenset()
        self._has_weights = False
        self._num_users = 0
        self._changing = asyncio.Lock()

    @asynccontextmanager
    async def awake(self) -> AsyncIterator[None]:
        await self.begin_use()
        try:
            yield
        finally:
            await self.end_use()

    async def begin_use(self) -> None:
        async with self._changing:
            await self._wake("weights")
            if not self._has_weights:
                await self._send_again()
                self._has_weights = True
            await self._wake("kv_cache")
            self._num_users += 1

    async def end_use(self) -> None:
        async with self._changing:
            self._num_users -= 1
            if self._num_users == 0:
                await self._fall_asleep()

    async def start_asleep(self) -> None:
        """Sleeps before anybody has generated."""
        async with self._changing:
            await self._fall_asleep()

    async def renew(self) -> None:
        """Says that the trainer's weights are a new version: they are sent when the engine wakes, or now if it is."""
        async with self._changing:
            self._has_weights = False
            if "weights" not in self._asleep:
                await self._send_again()
                self._has_weights = True

    async def _fall_asleep(self) -> None:
        await self._llm.sleep(level=_DISCARD)
        self._asleep = frozenset(("weights", "kv_cache"))
        self._has_weights = False

    async def _wake(self, part: Part) -> None:
        """Wakes a part that sleeps; vLLM's allocator cannot wake one that is awake."""
        if part in self._asleep:
            await self._give_back()
            await self._llm.wake_up([part])
            self._asleep = self._asleep.difference((part,))
