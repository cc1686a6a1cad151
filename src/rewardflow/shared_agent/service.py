"""Runs a host on an event loop in its own thread; opens the agent on the first request, and again after a halt.

Always true: at most one agent is open at a time, in one thread, with one owner. A request gets the error that kept the
agent from opening. A halted agent tells its clients once; the next hello opens a new agent.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import os
import uuid
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from rewardflow.errors import AgentClosed, InvalidInput, JournalWriteFailed
from rewardflow.reward.blocking import LoopThread
from rewardflow.shared_agent.host import Host
from rewardflow.shared_agent.messages import Delivery, HostStatistics, Op, Welcome
from rewardflow.shared_agent.spec import AgentSpec

T = TypeVar("T")


class Service:
    """The host's methods, which may be awaited on any loop."""

    def __init__(self, spec: AgentSpec, *, node: str = "") -> None:
        self._spec = spec
        self._node = node
        self._thread = LoopThread()
        self._thread.__enter__()
        self._host: Host | None = None
        self._was_opened = self._was_refused = False
        self._is_closed = False
        self._serving: concurrent.futures.Future[None] | None = None
        self._is_over: asyncio.Event | None = None  # ends the agent that is open now
        self._opening: asyncio.Lock | None = None

    @property
    def could_not_open(self) -> bool:
        """Whether its agent could not be opened, and never was."""
        return self._was_refused and not self._was_opened

    async def hello(
        self, spec: AgentSpec | None, secret: str, run: str, share: float, records: bool = False
    ) -> Welcome:
        if spec is not None and (difference := self._spec.difference(spec)) is not None:
            raise InvalidInput(
                "all who share an agent must describe it alike; this one runs with other settings (its own and those "
                f"asked for): {difference}"
            )
        return await self._on_host_loop(self._hello(secret, run, share, records))

    async def post(self, secret: str, ops: Sequence[Op]) -> bool:
        return await self._on_host_loop(self._post(secret, ops))

    async def take(self, secret: str, confirmed: int) -> Delivery | None:
        return await self._on_host_loop(self._take(secret, confirmed))

    async def bye(self, secret: str, confirmed: int) -> Delivery | None:
        return await self._on_host_loop(self._bye(secret, confirmed))

    async def statistics(self) -> HostStatistics:
        return await self._on_host_loop(self._statistics())

    async def close(self) -> None:
        """Ends the calls in flight, closes the journal, and opens no agent again."""
        self._is_closed = True
        await self._on_host_loop(self._close())

    async def _on_host_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self._thread.start(coroutine))

    # -- on the agent's own loop -------------------------------------------------------------------------------------

    async def _hello(self, secret: str, run: str, share: float, records: bool) -> Welcome:
        return (await self._open_host()).hello(secret, run, share, records)

    async def _post(self, secret: str, ops: Sequence[Op]) -> bool:
        return self._host is not None and self._host.post(secret, ops)

    async def _take(self, secret: str, confirmed: int) -> Delivery | None:
        return None if self._host is None else await self._host.take(secret, confirmed)

    async def _bye(self, secret: str, confirmed: int) -> Delivery | None:
        return None if self._host is None else self._host.bye(secret, confirmed)

    async def _statistics(self) -> HostStatistics:
        return dataclasses.replace((await self._open_host()).statistics(), pid=os.getpid(), node=self._node)

    async def _open_host(self) -> Host:
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
                self._serving = self._thread.start(self._serve(opened, self._is_over))
                self._host = await opened
            return self._host

    async def _serve(self, opened: asyncio.Future[Host], is_over: asyncio.Event) -> None:
        """Enters and leaves the agent's block in one task, which owns everything in it."""
        try:
            async with self._spec.build() as agent:
                self._was_opened = True
                opened.set_result(Host(agent, incarnation=uuid.uuid4().hex))
                await is_over.wait()
        except Exception as error:
            if opened.done():
                raise
            self._was_refused = True
            opened.set_exception(error)

    async def _close(self) -> None:
        if self._serving is not None and self._is_over is not None:
            self._is_over.set()
            has_halted = self._host is not None and self._host.halt is not None
            if self._host is not None:
                self._host.dismiss()
            self._host = None
            try:
                await asyncio.wrap_future(self._serving)
            except JournalWriteFailed:
                if not has_halted:
                    raise  # a halted agent has told this to its clients
