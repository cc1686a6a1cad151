"""Run a short action on an event loop from whatever thread we are in.

Always true: the caller gets the action's result or its exception, or `AgentClosed` if the loop ended first.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import TypeVar

from rewardflow.errors import AgentClosed

T = TypeVar("T")

_LOOP_CHECK_S = 1.0


def run_on_loop(loop: asyncio.AbstractEventLoop, thread_id: int, action: Callable[[], T]) -> T:
    """`thread_id` is that of the thread the loop runs in."""
    if threading.get_ident() == thread_id:
        return action()
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(action())
        except BaseException as error:
            future.set_exception(error)

    try:
        loop.call_soon_threadsafe(run)
        while not future.done():
            concurrent.futures.wait([future], timeout=_LOOP_CHECK_S)
            if loop.is_closed() and not future.done():
                raise AgentClosed("the agent's event loop has ended")
    except RuntimeError as error:
        raise AgentClosed("the agent's event loop has ended") from error
    return future.result()
