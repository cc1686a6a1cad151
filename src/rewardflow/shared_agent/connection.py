"""A client's connection to a host, with retries and reconnects, over a `Transport`.

Always true: after `ConnectionLost` the client retries with growing delays; after `SharedAgentGone` it gives up. Each
reconnect begins a new epoch, and messages of earlier epochs are not sent again. The client confirms a delivery by
asking for the next one; if it must say hello again and again, it waits longer each time. Every message carries the
client's secret, which only the host learns: it is in no log, statistic or error, and the same before and after a
restart of the host. A message for which the host has no room is sent again until there is room; one that the host
refuses for what it holds is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from rewardflow.errors import AgentClosed, AgentHalted, SharedAgentGone
from rewardflow.shared_agent.messages import (
    Bye,
    Delivery,
    Hello,
    Message,
    Op,
    Post,
    RunFull,
    Take,
    UnknownClient,
    Welcome,
    client_id_of,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

NOT_OPEN = "the client is not open: use `async with connect(...) as agent`"
_FIRST_RETRY_S, _LAST_RETRY_S = 0.05, 2.0
_BYE_S = 5.0


class ConnectionLost(Exception):
    """A message may not have arrived, or its answer was lost; the host may be back soon."""


class MessageRefused(Exception):
    """The host does not take this message, and would not take it a second time; it takes others."""


class Transport(Protocol):
    """Carries messages to a host: one way in."""

    async def ask(self, message: Message[T]) -> T:
        """Returns the host's answer, or raises what the host raised.

        Raises `ConnectionLost` if a retry may help, `MessageRefused` if another message may be taken, else
        `SharedAgentGone`.
        """

    def problem_with(self, value: object) -> str | None:
        """Says why a value of a rollout cannot be sent, or returns None."""

    async def aclose(self) -> None:
        """Closes connections; called once, after the last message."""


class Connection:
    """One client's connection: its id, the host's last welcome, and the number of reconnects."""

    def __init__(self, transport: Transport, *, run: str, share: float, records: bool, give_up_s: float) -> None:
        self._secret = secrets.token_hex(32)
        self.client_id = client_id_of(self._secret)
        self.num_reconnects = 0
        self._transport = transport
        self._run = run
        self._share = share
        self._records = records
        self._give_up_s = give_up_s
        self._welcome: Welcome | None = None
        self._is_up = asyncio.Event()
        self._confirmed = 0
        self._has_told_full = False
        self._hello_delays: Iterator[float] | None = None  # since the last answer to `take`

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
        """Says hello again to whichever host answers; holds back all other messages until the block ends."""
        self._is_up.clear()
        if self._hello_delays is None:
            self._hello_delays = _retries()
        else:  # the last hello was answered, and nothing after it
            await asyncio.sleep(next(self._hello_delays))
        self._welcome = await self._hello()
        self.num_reconnects += 1
        self._confirmed = 0
        yield
        self._is_up.set()

    async def wait_until_up(self) -> None:
        await self._is_up.wait()

    async def post(
        self, ops: Sequence[Op], *, epoch: int, without_cancelled: Callable[[Sequence[Op]], Sequence[Op]] = list
    ) -> None:
        """Retries until the message has arrived, or until a reconnect has queued its contents again.

        `without_cancelled` removes what was cancelled while the host had no room for the message. Raises
        `MessageRefused` if the host does not take it.
        """
        try:
            for retry_s in _retries():
                try:
                    if epoch == self.num_reconnects:
                        await self._transport.ask(Post(self._secret, list(ops)))
                    return
                except (ConnectionLost, UnknownClient):
                    pass  # `take` learns the same, and reconnects
                except RunFull as full:
                    self._tell_full(full)
                    ops = without_cancelled(ops)
                    if not ops:
                        return
                await asyncio.sleep(retry_s)
        except AgentHalted:
            return  # `take` reports the halt to everybody

    def _tell_full(self, full: RunFull) -> None:
        """Logs once that the host has no room, because waiting for verdicts is slower from here on."""
        if not self._has_told_full:
            self._has_told_full = True
            logger.warning("the shared agent takes more rollouts when verdicts are confirmed: %s", full)

    async def take(self) -> Delivery | None:
        """Returns the next delivery, and confirms it with the next call; None if the client must say hello first."""
        try:
            delivery = await self._transport.ask(Take(self._secret, self._confirmed))
        except (ConnectionLost, UnknownClient) as error:
            logger.info("the shared agent does not answer this client: %s", error)
            return None
        self._hello_delays = None
        self._confirmed = delivery.number
        return delivery

    async def bye(self) -> Delivery | None:
        """Leaves the host, in bounded time; returns its last delivery if the host answers."""
        with contextlib.suppress(ConnectionLost, MessageRefused, UnknownClient, AgentHalted, TimeoutError):
            async with asyncio.timeout(_BYE_S):
                return await self._transport.ask(Bye(self._secret, self._confirmed))
        return None

    async def _hello(self) -> Welcome:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._give_up_s
        for retry_s in _retries():
            try:
                return await self._transport.ask(Hello(self._secret, self._run, self._share, self._records))
            except ConnectionLost as error:
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
