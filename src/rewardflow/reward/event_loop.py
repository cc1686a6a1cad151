"""Runs actions on an agent's event loop from any thread, and ends the agent's tasks.

Always true: the caller gets the action's result or its exception, or `AgentClosed` if the loop ended first. In a forked
process, where the loop does not run, every action is refused. An agent's block is left on the loop where it was
entered, and its tasks end before the block does.
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
    """The loop that an agent was opened on, with its thread and its process."""

    __slots__ = ("_pid", "_thread_id", "loop")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._pid = os.getpid()

    def check_is_running(self) -> None:
        """Raises `InvalidInput` if the agent's block is left on another loop."""
        if asyncio.get_running_loop() is not self.loop:
            raise InvalidInput("an agent must be left on the event loop that it was entered on, got another one")

    def run(self, action: Callable[[], T]) -> T:
        """Runs a short action on the loop and returns its result; may be called from any thread."""
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
    """Waits for an agent's tasks when its block ends; `error` is the exception that ended the block, if any.

    Passes on only a cancellation, which the task group may have requested itself. The group would wrap other errors.
    """
    cancelled = error if isinstance(error, asyncio.CancelledError) else None
    await tasks.__aexit__(type(cancelled) if cancelled else None, cancelled, None)
