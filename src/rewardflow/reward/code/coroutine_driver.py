"""Runs a user's coroutine inside the caller's task, in a separate context.

Always true: the coroutine sees only its own context variables; it cannot outlive its call (one that ignores its
cancellation is closed after a grace period); the log names once a coroutine that blocks the event loop, and blames none
for the time in which a busy machine had no core for the loop. A coroutine that raises GeneratorExit or
KeyboardInterrupt, stops the loop or cancels the caller's task fails with an ordinary exception; only a Ctrl-C passes
through. All of this costs about a microsecond, where a task for each call would cost ten.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import types
from collections.abc import Callable, Coroutine, Generator
from time import perf_counter
from typing import Any

from rewardflow.reward.calls.deadlines import Deadline
from rewardflow.reward.calls.starvation import Starvation
from rewardflow.reward.code.context_transfer import as_ordinary_exception, may_be_ctrl_c

logger = logging.getLogger(__name__)

GRACE_S = 2.0
_BLOCKING_S = 0.5


class TasksCancelled(RuntimeError):
    """Reward code cancelled the task that runs it, and so probably all tasks of the loop."""


def begin_coroutine(
    coroutine: Coroutine[Any, Any, Any], context: contextvars.Context, name: str, deadline: Deadline
) -> tuple[bool, Any]:
    """Runs the coroutine's first step. Returns True and the result if it ended, else False and an awaitable for it."""
    driven = _drive(coroutine, context, name, deadline)
    try:
        driven.send(None)
    except StopIteration as stop:
        return True, stop.value
    return False, driven


@types.coroutine
def _drive(
    coroutine: Coroutine[Any, Any, Any], context: contextvars.Context, name: str, deadline: Deadline
) -> Generator[Any, Any, Any]:
    """Passes awaited futures up and their results down. The first yield only tells `begin_coroutine` to go on."""
    close_at_s: float | None = None
    is_begun = False
    task = deadline.task or asyncio.current_task()
    assert task is not None, "a coroutine can only be driven inside a task"
    try:
        awaited = _step(name, context, task, coroutine.send, None)
        while True:
            is_in_time = True
            try:
                if not is_begun:
                    is_begun = True
                    yield None
                if close_at_s is None:
                    yield awaited
                else:
                    is_in_time = yield from _wait_until(close_at_s, awaited)
            except GeneratorExit:
                coroutine.close()
                _raise_if_awaited_one(awaited)
                raise
            except asyncio.CancelledError as cancelled:
                awaited = _step(name, context, task, coroutine.throw, cancelled)
                # The coroutine goes on. It may, if the cancellation was its own (a timeout or a task group inside).
                if deadline.is_expired and close_at_s is None:
                    close_at_s = asyncio.get_running_loop().time() + GRACE_S
                continue
            except BaseException as error:
                awaited = _step(name, context, task, coroutine.throw, error)
                continue
            if not is_in_time:
                _close(coroutine, name)
                raise asyncio.CancelledError
            awaited = _step(name, context, task, coroutine.send, None)
    except StopIteration as stop:
        return stop.value


def _raise_if_awaited_one(awaited: Any) -> None:
    """Raises an ordinary exception if the task that the coroutine awaits ended with GeneratorExit.

    Python then closes everything that awaits that task, instead of throwing the exception into it.
    """
    if asyncio.isfuture(awaited) and awaited.done() and not awaited.cancelled():
        error = awaited.exception()
        if isinstance(error, GeneratorExit):
            raise as_ordinary_exception(error) from error


def _step(
    name: str,
    context: contextvars.Context,
    task: asyncio.Task[Any],
    advance: Callable[[Any], Any],
    value: Any,
) -> Any:
    """Advances the coroutine by one step and checks what the step did to the loop and to the task that runs it."""
    loop: Any = task.get_loop()
    was_stopping, num_requests = getattr(loop, "_stopping", True), task.cancelling()
    began_s = perf_counter()
    _starvation.look(began_s)
    try:
        return context.run(advance, value)
    except (GeneratorExit, KeyboardInterrupt) as error:
        if may_be_ctrl_c(error):
            raise
        raise as_ordinary_exception(error) from error
    finally:
        if (took_s := perf_counter() - began_s) > _BLOCKING_S:
            blocked_s = took_s - _starvation.waited_s()
            if blocked_s > _BLOCKING_S:
                _warn_blocking(name, blocked_s)
        if task.cancelling() > num_requests:
            raise TasksCancelled(
                "reward code cancelled the task that runs it; it may cancel only tasks that it started"
            )
        if not was_stopping and loop._stopping:  # asyncio's own loops have it, and no public call undoes `stop`
            loop._stopping = False
            raise RuntimeError("reward code stopped the event loop, which runs all other calls, too")


def _close(coroutine: Coroutine[Any, Any, Any], name: str) -> None:
    logger.warning("reward %s ignored its cancellation for %g s and was closed", name, GRACE_S)
    try:
        coroutine.close()
    except RuntimeError:  # it awaited again instead of ending; nothing runs it any longer
        logger.debug("reward %s also ignored GeneratorExit", name)


def _wait_until(deadline_s: float, awaited: Any) -> Generator[Any, Any, bool]:
    """Waits for the awaited future, but not beyond the deadline; returns whether it was done in time."""
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


_starvation = Starvation()
_warned_blocking: set[str] = set()


def _warn_blocking(name: str, blocked_s: float) -> None:
    if name not in _warned_blocking:
        _warned_blocking.add(name)
        logger.warning(
            "reward %s is async but blocked the event loop for %.1f s, which stops every other call; "
            "make it a plain function (it will run in threads) or use await instead of blocking",
            name,
            blocked_s,
        )
