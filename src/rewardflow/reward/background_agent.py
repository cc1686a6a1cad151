"""Keeps an agent open on an event loop of a separate thread, for callers that are not async.

Always true: the agent is closed once: by `close`, or when nobody refers to the object any more.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Protocol

from rewardflow.errors import AgentClosed
from rewardflow.reward.blocking import LoopThread
from rewardflow.reward.ticket import Ticket
from rewardflow.types import Rollout


class BatchAgent(Protocol):
    """What a caller needs of an agent to have batches judged: a `RewardAgent`, or a client of a shared one."""

    @property
    def is_open(self) -> bool: ...

    def submit(self, rollouts: Iterable[Rollout]) -> Ticket: ...

    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class BackgroundAgent:
    """Keeps an agent open in a loop thread until it is closed or no longer referenced."""

    def __init__(self, agent: BatchAgent) -> None:
        self.agent = agent
        self._thread = LoopThread()
        self._thread.__enter__()
        opened: concurrent.futures.Future[asyncio.Event] = concurrent.futures.Future()
        self._closed = self._thread.start(_keep_open(agent, opened))
        try:
            self._close_event = opened.result()
        except BaseException:
            self._thread.stop()
            raise
        self._finalizer = weakref.finalize(self, _close_agent, self._thread, self._closed, self._close_event)

    def close(self) -> None:
        self._finalizer()


async def _keep_open(agent: BatchAgent, opened: concurrent.futures.Future[asyncio.Event]) -> None:
    close_event = asyncio.Event()
    try:
        async with agent:
            opened.set_result(close_event)
            await close_event.wait()
    except BaseException as error:
        if opened.done():
            raise
        opened.set_exception(error)


def _close_agent(thread: LoopThread, closed: concurrent.futures.Future[None], close_event: asyncio.Event) -> None:
    if thread.is_current():  # garbage collection ran in the loop thread, which must not wait for itself
        close_event.set()
        closed.add_done_callback(lambda _: thread.stop())
        return
    with contextlib.suppress(RuntimeError, AgentClosed):  # the agent ended before; its callers know why
        thread.call_soon(close_event.set)
        closed.result()
    thread.stop()
