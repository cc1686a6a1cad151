"""Keeps a host open: opens the agent on the first request, and again after a halt.

Always true: at most one agent is open at a time, with one task that owns it. A request gets the error that kept the
agent from opening. A halted agent tells its clients once; the next hello opens a new agent. All methods run on one
event loop; whoever serves requests from another loop brings them here (`ray_actor.py`).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from rewardflow.errors import AgentClosed, JournalWriteFailed
from rewardflow.reward.agent import RewardAgent
from rewardflow.shared_agent.host import Host
from rewardflow.shared_agent.messages import AskStatistics, Hello, Message, UnknownClient

T = TypeVar("T")
Start = Callable[[Coroutine[Any, Any, Exception | None]], Awaitable[Exception | None]]


class Service:
    """Answers clients with an open host. `build` makes an agent; `start` runs a coroutine as a task of the owner."""

    def __init__(
        self,
        build: Callable[[], RewardAgent],
        start: Start,
        *,
        node: str = "",
        max_waiting_of: Callable[[str], int | None] = lambda run: None,
    ) -> None:
        self._build = build
        self._max_waiting_of = max_waiting_of
        self._start = start
        self._node = node
        self._host: Host | None = None
        self._was_opened = self._was_refused = False
        self._is_closed = False
        self._serving: Awaitable[Exception | None] | None = None
        self._is_over: asyncio.Event | None = None  # ends the agent that is open now
        self._opening: asyncio.Lock | None = None

    @property
    def could_not_open(self) -> bool:
        """Whether its agent could not be opened, and never was."""
        return self._was_refused and not self._was_opened

    async def answer(self, message: Message[T]) -> T:
        """Answers a client's message. Only `Hello` and `AskStatistics` open an agent."""
        opens = isinstance(message, Hello | AskStatistics)
        host = await self.open_host() if opens else self._host
        if host is None:
            raise UnknownClient("this client must say hello first")
        return await host.answer(message)

    async def open_host(self) -> Host:
        """Returns a host whose agent has not halted; opens one if needed."""
        if self._is_closed:
            raise AgentClosed("the shared agent is being stopped")
        self._opening = self._opening or asyncio.Lock()
        async with self._opening:
            if self._host is not None and self._host.halt is not None:
                await self._close()
            if self._host is None:
                opened: asyncio.Future[Host] = asyncio.get_running_loop().create_future()
                self._is_over = asyncio.Event()
                self._serving = self._start(self._serve(opened, self._is_over))
                self._host = await opened
            return self._host

    async def close(self) -> None:
        """Ends the calls in flight, closes the journal, and opens no agent again."""
        self._is_closed = True
        await self._close()

    async def _serve(self, opened: asyncio.Future[Host], is_over: asyncio.Event) -> Exception | None:
        """Enters and leaves the agent's block in one task, which owns everything in it; returns what it raised."""
        try:
            async with self._build() as agent:
                self._was_opened = True
                incarnation = uuid.uuid4().hex
                host = Host(agent, incarnation=incarnation, node=self._node, max_waiting_of=self._max_waiting_of)
                opened.set_result(host)
                await is_over.wait()
        except Exception as error:
            if opened.done():
                return error
            self._was_refused = True
            opened.set_exception(error)
        return None

    async def _close(self) -> None:
        if self._serving is None or self._is_over is None:
            return
        serving, self._serving = self._serving, None
        self._is_over.set()
        has_halted = self._host is not None and self._host.halt is not None
        if self._host is not None:
            self._host.dismiss()
        self._host = None
        error = await serving
        if error is not None and not (has_halted and isinstance(error, JournalWriteFailed)):
            raise error  # a halted agent has told its clients that the journal failed
