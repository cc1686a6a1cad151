"""The connection pools of each event loop.

Always true: connections close at the latest when their event loop ends. A loop has one pool for each scheme, host and
port.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from rewardflow.services.http.proxies import EnvironmentProxies

if TYPE_CHECKING:
    from rewardflow.services.http.connection_pool import ConnectionPool, WatchSettings


class PoolsOfLoops:
    """Opens the pools of an event loop with its first request, and again after `aclose`."""

    def __init__(self, *, keep_alive: bool, watch: WatchSettings | None) -> None:
        self._keep_alive = keep_alive
        self._watch = watch
        self._lifetimes: dict[asyncio.AbstractEventLoop, _Lifetime] = {}

    def __len__(self) -> int:
        return len(self._lifetimes)

    async def of_running_loop(self) -> LoopPools:
        loop = asyncio.get_running_loop()
        lifetime = self._lifetimes.get(loop)
        if lifetime is not None and not lifetime.pools.is_closed:
            return lifetime.pools
        lifetime = self._lifetimes[loop] = _Lifetime(self._lifetimes, LoopPools(self._keep_alive, self._watch))
        await lifetime.begin()
        for ended in [other for other in list(self._lifetimes) if other.is_closed()]:
            await self._lifetimes.pop(ended).aclose()
        return lifetime.pools

    async def aclose(self) -> None:
        """Closes the connections of the running loop and of loops that have ended."""
        running = asyncio.get_running_loop()
        for loop in [loop for loop in list(self._lifetimes) if loop is running or loop.is_closed()]:
            await self._lifetimes.pop(loop).aclose()


class LoopPools:
    """The connections of one event loop: one pool for each scheme, host and port."""

    def __init__(self, keep_alive: bool, watch: WatchSettings | None) -> None:
        self.proxies = EnvironmentProxies()
        self.is_closed = False
        # Held while a large body is parsed: of many that arrive at once, each is parsed in a turn of the loop of its
        # own, so that other calls go on in between. Parsing holds the interpreter lock, so a thread would not help.
        self.large_bodies = asyncio.Lock()
        self._keep_alive = keep_alive
        self._watch = watch
        self._by_origin: dict[str, ConnectionPool] = {}
        self._by_url: dict[str, ConnectionPool] = {}

    def pool_of(self, url: str) -> ConnectionPool:
        pool = self._by_url.get(url)
        if pool is None:
            from rewardflow.services.http.connection_pool import ConnectionPool, origin_of

            origin = origin_of(url)
            pool = self._by_origin.get(origin)
            if pool is None:
                pool = ConnectionPool(origin, keep_alive=self._keep_alive, watch=self._watch)
                self._by_origin[origin] = pool
            self._by_url[url] = pool
        return pool

    async def aclose(self) -> None:
        self.is_closed = True
        for pool in self._by_origin.values():
            await pool.aclose()


class _Lifetime:
    """Keeps the connections of one event loop from its first request until `aclose` or the end of the loop.

    A loop closes its asynchronous generators when it ends; this is the only way to notice its end.
    """

    def __init__(self, others: dict[asyncio.AbstractEventLoop, _Lifetime], pools: LoopPools) -> None:
        self.pools = pools
        self._kept = self._keep(others, asyncio.get_running_loop())

    async def begin(self) -> None:
        await anext(self._kept)

    async def aclose(self) -> None:
        await self._kept.aclose()
        await self.pools.aclose()  # for a loop that ended without closing its generators

    async def _keep(
        self, others: dict[asyncio.AbstractEventLoop, _Lifetime], loop: asyncio.AbstractEventLoop
    ) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            if others.get(loop) is self:
                del others[loop]
            await self.pools.aclose()
