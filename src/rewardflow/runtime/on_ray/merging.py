"""Merges several streams into one stream of batches: a message costs about the same whatever is in it.

Always true: a batch has everything that came since the one before; the first error of a stream is raised as it was,
when the caller asks for the next batch and not before, and ends the others; closing the result closes the streams.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


async def in_batches(sources: Sequence[AsyncGenerator[T]], *, pause_s: float = 0.0) -> AsyncGenerator[list[T]]:
    """Waits `pause_s` after each batch, so that the next one has more."""
    basket: _Basket[T] = _Basket(len(sources))
    try:
        async with asyncio.TaskGroup() as tasks:
            for source in sources:
                tasks.create_task(basket.fill(source))
            while (batch := await basket.taken()) is not None:
                yield batch
                if pause_s:
                    await asyncio.sleep(pause_s)
    except BaseExceptionGroup as group:  # of the one error, or the wish to close, that ended it
        raise group.exceptions[0] from None


class _Basket(Generic[T]):
    """The items that have come and were not taken."""

    def __init__(self, num_sources: int) -> None:
        self._items: list[T] = []
        self._error: Exception | None = None
        self._num_open = num_sources
        self._changed = asyncio.Event()

    async def fill(self, source: AsyncGenerator[T]) -> None:
        try:
            async with contextlib.aclosing(source):
                async for item in source:
                    self._items.append(item)
                    self._changed.set()
        except Exception as error:  # raised by `taken`: a failed task would cancel the caller in the middle of a batch
            self._error = self._error or error
        self._num_open -= 1
        self._changed.set()

    async def taken(self) -> list[T] | None:
        """Returns what has come since; None if nothing is left and all sources have ended."""
        while not self._items and self._error is None and self._num_open:
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None and not self._items:
            raise self._error
        taken, self._items = self._items, []
        return taken or None
