"""Which processes an agent is still there for, if it is there for nobody else.

Always true: `wait_until_all_left` returns when the last of those who came is gone, and not before; where nobody comes
at all it returns after `patience_s`, because an agent that was started again may have outlived everybody. This module
knows no Ray, and everything happens on one loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable


class Attendance:
    """Told who came, with something to wait for that ends when they are gone."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._num_present = 0
        self._somebody_came = asyncio.Event()
        self._nobody_is_left = asyncio.Event()

    async def attend(self, gone: Awaitable[object]) -> None:
        """Somebody is here until `gone` ends, however it ends."""
        self._num_present += 1
        self._somebody_came.set()
        try:
            await gone
        finally:
            self._num_present -= 1
            if self._num_present == 0:
                self._nobody_is_left.set()

    async def wait_until_all_left(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s):
                await self._somebody_came.wait()
        if self._somebody_came.is_set():
            await self._nobody_is_left.wait()
