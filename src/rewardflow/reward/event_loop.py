"""The event loop that an agent lives on: for whoever wants something of it from another thread, and for its end.

Always true: the caller gets the action's result or its exception, or `AgentClosed` if the loop ended first; a loop that
cannot run here, because this process is a fork of its own, is asked for nothing. An agent is left on its own loop, and
its tasks end before it does.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable
from typing import TypeVar

from rewardflow.errors import AgentClosed, InvalidInput

T = TypeVar("T")

_LOOP_CHECK_S = 1.0


class AgentLoop:
    """The running loop, its thread and its process."""

    __slots__ = ("_pid", "_thread_id", "loop")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._pid = os.getpid()

    def check_is_running(self) -> None:
        """At the end of the agent's block."""
        if asyncio.get_running_loop() is not self.loop:
            raise InvalidInput("an agent must be left on the event loop that it was entered on, got another one")

    def run(self, action: Callable[[], T]) -> T:
        """Run a short action on the loop, from whatever thread we are in."""
        if os.getpid() != self._pid:
            raise AgentClosed("the agent was opened before this process was forked; open one here")
        if threading.get_ident() == self._thread_id:
            return action()
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            try:
                future.set_result(action())
            except BaseException as error:
                future.set_exception(error)

        try:
            self.loop.call_soon_threadsafe(run)
            while not future.done():
                concurrent.futures.wait([future], timeout=_LOOP_CHECK_S)
                if self.loop.is_closed() and not future.done():
                    raise AgentClosed("the agent's event loop has ended")
        except RuntimeError as error:
            raise AgentClosed("the agent's event loop has ended") from error
        return future.result()


async def end_tasks(tasks: asyncio.TaskGroup, error: BaseException | None) -> None:
    """Wait for an agent's tasks when its block ends, by this error or by none.

    The group must see a cancellation that it asked for itself; other errors are the caller's, not to be wrapped.
    """
    cancelled = error if isinstance(error, asyncio.CancelledError) else None
    await tasks.__aexit__(type(cancelled) if cancelled else None, cancelled, None)
