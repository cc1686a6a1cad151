"""The line to a host, and a client's end of it.

Always true: a line breaks for now (`LineBroken`), and whoever was cut off tries again, less and less often, or for good
(`SharedAgentGone`). Each reconnect begins a new era, and no message of an earlier one is sent again. A delivery is
confirmed by asking for the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Protocol

from rewardflow.errors import AgentClosed, AgentHalted, SharedAgentGone
from rewardflow.shared_agent.messages import Delivery, HostStatistics, Op, Welcome

logger = logging.getLogger(__name__)

NOT_OPEN = "the client is not open: use `async with connect(...) as agent`"
_FIRST_RETRY_S, _LAST_RETRY_S = 0.05, 2.0
_BYE_S = 5.0


class LineBroken(Exception):
    """A message may not have arrived, or its answer was lost; the host may be back soon."""


class Line(Protocol):
    """The way to a host. All of these raise `LineBroken` for what may pass, `SharedAgentGone` for what will not."""

    async def hello(self, client_id: str, run: str, share: float, records: bool) -> Welcome: ...

    async def post(self, client_id: str, ops: Sequence[Op]) -> bool: ...

    async def take(self, client_id: str, confirmed: int) -> Delivery | None: ...

    async def bye(self, client_id: str, confirmed: int) -> Delivery | None: ...

    async def statistics(self) -> HostStatistics: ...


class Connection:
    """One client's use of a line: who it is there, what it was told when it came, and how often it came again."""

    def __init__(self, line: Line, *, run: str, share: float, records: bool, give_up_s: float) -> None:
        self.client_id = uuid.uuid4().hex
        self.num_reconnects = 0
        self._line = line
        self._run = run
        self._share = share
        self._records = records
        self._give_up_s = give_up_s
        self._welcome: Welcome | None = None
        self._is_up = asyncio.Event()
        self._confirmed = 0

    @property
    def welcome(self) -> Welcome:
        if self._welcome is None:
            raise AgentClosed(NOT_OPEN)
        return self._welcome

    async def open(self) -> Welcome:
        self._welcome = await self._hello()
        self._is_up.set()
        return self._welcome

    @contextlib.asynccontextmanager
    async def renewed(self) -> AsyncIterator[None]:
        """Welcome again, by whoever answers; nothing is sent before the end of the block."""
        self._is_up.clear()
        self._welcome = await self._hello()
        self.num_reconnects += 1
        self._confirmed = 0
        yield
        self._is_up.set()

    async def wait_until_up(self) -> None:
        await self._is_up.wait()

    async def post(self, ops: Sequence[Op], *, era: int) -> None:
        """Until it has arrived, or a reconnect has put everything anew that it holds."""
        try:
            for retry_s in _retries():
                with contextlib.suppress(LineBroken):
                    if era != self.num_reconnects or await self._line.post(self.client_id, ops):
                        return
                    # The host does not know us. Whoever takes hears the same, and says hello.
                await asyncio.sleep(retry_s)
        except AgentHalted:
            return  # whoever takes tells everybody

    async def take(self) -> Delivery | None:
        """The next delivery, which is ours from here on; None: we must say hello first."""
        try:
            delivery = await self._line.take(self.client_id, self._confirmed)
        except LineBroken as error:
            logger.info("the shared agent does not answer: %s", error)
            return None
        if delivery is not None:
            self._confirmed = delivery.number
        return delivery

    async def bye(self) -> Delivery | None:
        """In bounded time; the last that the host has to tell, if it does."""
        with contextlib.suppress(LineBroken, AgentHalted, TimeoutError):
            async with asyncio.timeout(_BYE_S):
                return await self._line.bye(self.client_id, self._confirmed)
        return None

    async def _hello(self) -> Welcome:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._give_up_s
        for retry_s in _retries():
            try:
                return await self._line.hello(self.client_id, self._run, self._share, self._records)
            except LineBroken as error:
                if loop.time() + retry_s > until_s:
                    raise SharedAgentGone(
                        f"the shared agent must answer within {self._give_up_s:g} s, it did not: {error}"
                    ) from error
                await asyncio.sleep(retry_s)
        raise AssertionError("retries never end")


def _retries() -> Iterator[float]:
    retry_s = _FIRST_RETRY_S
    while True:
        yield retry_s
        retry_s = min(2 * retry_s, _LAST_RETRY_S)
