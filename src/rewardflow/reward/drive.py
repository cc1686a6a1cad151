"""Runs a user's coroutine inside the caller's task, in a context of its own.

Always true: the coroutine sees only its own context variables; it cannot outlive its call (one that swallows its
cancellation is closed after a grace period); one that blocks the event loop is named once in the log. All of this
costs about a microsecond, where a task for each call would cost ten.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any

logger = logging.getLogger(__name__)

GRACE_S = 2.0
_BLOCKING_S = 0.5


class Driven:
    """A coroutine that has begun: `is_done` with its `result` if it never had to wait; otherwise await it."""

    __slots__ = ("_awaited", "_context", "_coroutine", "_name", "is_done", "result")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context, name: str) -> None:
        self._coroutine = coroutine
        self._context = context
        self._name = name
        self.is_done = False
        self.result: Any = None
        try:
            self._awaited = self._step(coroutine.send, None)
        except StopIteration as stop:
            self.is_done, self.result = True, stop.value

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine, awaited = self._coroutine, self._awaited
        try:
            while True:
                try:
                    yield awaited
                except asyncio.CancelledError as cancelled:
                    awaited = self._step(coroutine.throw, cancelled)
                    return (yield from self._wind_down(awaited))
                except GeneratorExit:
                    coroutine.close()
                    raise
                except BaseException as error:
                    awaited = self._step(coroutine.throw, error)
                else:
                    awaited = self._step(coroutine.send, None)
        except StopIteration as stop:
            return stop.value

    def _step(self, advance: Callable[[Any], Any], value: Any) -> Any:
        began_s = time.perf_counter()
        try:
            return self._context.run(advance, value)
        finally:
            if time.perf_counter() - began_s > _BLOCKING_S:
                _name_blocking(self._name, time.perf_counter() - began_s)

    def _wind_down(self, awaited: Any) -> Generator[Any, Any, Any]:
        """After cancellation: let the coroutine clean up, but not for ever."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + GRACE_S
        while loop.time() < deadline_s:
            yield from _until_done(loop, awaited, deadline_s)
            if awaited is not None and not awaited.done():
                break
            awaited = self._step(self._coroutine.send, None)
        logger.warning("reward %s ignored its cancellation for %.0f s and was closed", self._name, GRACE_S)
        _close(self._coroutine)
        raise asyncio.CancelledError


def _until_done(loop: asyncio.AbstractEventLoop, awaited: Any, deadline_s: float) -> Generator[Any, Any, None]:
    if awaited is None:  # a bare yield, as from asyncio.sleep(0)
        yield None
        return
    awaited._asyncio_future_blocking = False  # taken over from the coroutine; only a Task would reset it
    woken: asyncio.Future[None] = loop.create_future()

    def wake(_: object = None) -> None:
        if not woken.done():
            woken.set_result(None)

    awaited.add_done_callback(wake)
    timer = loop.call_at(deadline_s, wake)
    try:
        yield from woken
    finally:
        timer.cancel()
        awaited.remove_done_callback(wake)


def _close(coroutine: Coroutine[Any, Any, Any]) -> None:
    try:
        coroutine.close()
    except RuntimeError:  # it awaited once more on the way out; nothing drives it any longer
        logger.debug("a reward coroutine ignored GeneratorExit")


_named_blocking: set[str] = set()


def _name_blocking(name: str, blocked_s: float) -> None:
    if name not in _named_blocking:
        _named_blocking.add(name)
        logger.warning(
            "reward %s is async but blocked the event loop for %.1f s, which stops every other call; "
            "make it a plain function (it will run in threads) or await what it waits for",
            name,
            blocked_s,
        )
