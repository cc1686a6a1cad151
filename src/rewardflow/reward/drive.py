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

from rewardflow.reward.deadlines import Deadline

logger = logging.getLogger(__name__)

GRACE_S = 2.0
_BLOCKING_S = 0.5


class Driven:
    """A coroutine that has begun: `is_done` with its `result` if it never had to wait; otherwise await it."""

    __slots__ = ("_awaited", "_context", "_coroutine", "_deadline", "_name", "is_done", "result")

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], context: contextvars.Context, name: str, deadline: Deadline
    ) -> None:
        self._coroutine = coroutine
        self._deadline = deadline
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
        close_at_s: float | None = None
        try:
            while True:
                is_in_time = True
                try:
                    if close_at_s is None:
                        yield awaited
                    else:
                        is_in_time = yield from _wait_until(close_at_s, awaited)
                except GeneratorExit:
                    coroutine.close()
                    raise
                except asyncio.CancelledError as cancelled:
                    awaited = self._step(coroutine.throw, cancelled)
                    # It goes on. That is its right if the cancellation was its own (a timeout, a task group inside).
                    if self._deadline.is_expired and close_at_s is None:
                        close_at_s = asyncio.get_running_loop().time() + GRACE_S
                    continue
                except BaseException as error:
                    awaited = self._step(coroutine.throw, error)
                    continue
                if not is_in_time:
                    self._close()
                    raise asyncio.CancelledError
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

    def _close(self) -> None:
        logger.warning("reward %s ignored its cancellation for %g s and was closed", self._name, GRACE_S)
        try:
            self._coroutine.close()
        except RuntimeError:  # it awaited once more on the way out; nothing drives it any longer
            logger.debug("reward %s also ignored GeneratorExit", self._name)


def _wait_until(deadline_s: float, awaited: Any) -> Generator[Any, Any, bool]:
    """Wait for what the coroutine awaits, but not beyond the deadline; whether it came in time."""
    loop = asyncio.get_running_loop()
    if awaited is None:  # a bare yield, as from asyncio.sleep(0)
        yield None
        return loop.time() < deadline_s
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
    return bool(awaited.done())


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
