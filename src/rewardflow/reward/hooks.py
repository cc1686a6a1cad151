"""Runs the optional methods of a user's class (post-processing, logging, closing), plain or async, off the loop.

Always true: an error in a hook is logged and returned, never raised: it must not take verdicts with it.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Callable
from typing import Any

from rewardflow.reward.call import Call
from rewardflow.reward.faults import describe
from rewardflow.reward.threads import ThreadWorkers

logger = logging.getLogger(__name__)


class Hooks:
    """A few threads for plain hooks; async ones run on the loop."""

    def __init__(self, *, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._threads = ThreadWorkers(_call, size=2, max_abandoned=8, name="hooks")

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._threads.start(loop)

    async def run(
        self, name: str, hook: Callable[..., Any], *arguments: Any, timeout_s: float | None = None
    ) -> tuple[Any, str | None]:
        """What the hook returned, and None; or None, and what went wrong."""
        try:
            async with asyncio.timeout(timeout_s or self._timeout_s):
                if inspect.iscoroutinefunction(hook):
                    return await hook(*arguments), None
                kwargs = {"hook": hook, "arguments": arguments}
                result = await self._threads.call(kwargs, Call(()), contextvars.copy_context())
                return (await result if inspect.isawaitable(result) else result), None
        except Exception as error:
            problem = f"{name} failed: {describe(error)}"
            logger.error("%s", problem)
            return None, problem

    async def aclose(self, timeout_s: float) -> None:
        await self._threads.aclose(timeout_s)


def _call(hook: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return hook(*arguments)
