"""The connections to one server, and the rule when one may carry a second request.

HTTP/1.1 does not name the request that a response belongs to: the client takes the next response on the connection. If
a gateway sends a response twice, the second one is taken for the answer to the next request, and a rollout gets the
score of another one.

Always true: a connection with unread bytes, or with bytes that came while no request was waiting, carries no further
request. After the first such byte, each request to this server has a connection of its own.

To see such bytes in time, the pool watches connections: it keeps one open after its last request, without using it, and
waits for bytes. The first connections to a server carry one request each and are watched. If they stay silent, later
connections carry up to `max_requests` requests, and are watched after the last one. How many differs from connection to
connection: if a gateway begins to answer twice while all of them are busy, the first of them is soon watched.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import math
import select
import urllib.parse
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

from rewardflow.services.http.request_ids import REQUEST_IDS

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 4.0  # vLLM and others close idle connections after 5 s; closing earlier avoids using a closed one
_GOLDEN = (math.sqrt(5) - 1) / 2  # the fractions of its multiples are spread evenly, however many there are


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """How many connections are watched, and for how long."""

    num_first: int = 16  # connections that must stay silent before others are reused
    first_s: float = 0.25
    max_requests: int = 64  # of a connection, or fewer; bounds how many answers one out of step can mix up
    last_s: float = KEEP_ALIVE_S  # longer than most calls: the answers of such a connection come one call late
    max_watched: int = 32  # at a time


class Trip:
    """The state of one request that decides whether to believe its answer."""

    __slots__ = ("is_on_used_connection", "request_id")

    def __init__(self) -> None:
        self.request_id = REQUEST_IDS.new()
        self.is_on_used_connection = False


# The request that the running code sends. aiohttp's own way to pass it (tracing) takes 20 us a request.
CURRENT_TRIP: contextvars.ContextVar[Trip | None] = contextvars.ContextVar("trip", default=None)


class ConnectionPool:
    """The connections to one scheme, host and port, on one event loop."""

    def __init__(self, origin: str, *, keep_alive: bool = True, watch: WatchSettings | None = None) -> None:
        self.origin = origin
        self._settings = watch or WatchSettings()
        self._loop = asyncio.get_running_loop()
        self._num_silent = 0
        self._num_made = 0
        self._watched: dict[WatchedConnection, asyncio.TimerHandle] = {}
        self._is_closed = False
        self.keeps_alive = keep_alive
        self._single_use: aiohttp.ClientSession | None = None
        self._reused: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        """The session for the next request."""
        if not self.keeps_alive:
            return self.single_use
        if self._reused is None:
            self._reused = self._reusing_session()
        return self._reused

    @property
    def single_use(self) -> aiohttp.ClientSession:
        """The session in which each request has a connection of its own."""
        if self._single_use is None:
            self._single_use = _new_session(aiohttp.TCPConnector(limit=0, force_close=True))
        return self._single_use

    @property
    def max_requests(self) -> int:
        """How many requests a connection may carry now."""
        if not self.keeps_alive or self._num_silent < self._settings.num_first:
            return 1
        return self._settings.max_requests

    def next_share(self) -> float:
        """Returns which share of `max_requests` the next connection may carry: above 0, and 1 for the first."""
        share = 1.0 - self._num_made * _GOLDEN % 1.0
        self._num_made += 1
        return share

    def distrust(self, reason: str) -> None:
        """Ends the reuse of connections, and says so once."""
        if self.keeps_alive:
            self.keeps_alive = False
            logger.warning(
                "%s %s, so that the answer to one request can be taken for the answer to another; from now on each "
                "request to it has a connection of its own (keep_alive: false does so from the start)",
                self.origin,
                reason,
            )

    def watch(self, connection: WatchedConnection) -> bool:
        """Keeps a connection open for a while, without using it. Returns False if the pool does not watch it."""
        if self._is_closed or not self.keeps_alive or len(self._watched) >= self._settings.max_watched:
            return False
        is_first = self._num_silent < self._settings.num_first
        seconds = self._settings.first_s if is_first else self._settings.last_s
        self._watched[connection] = self._loop.call_later(seconds, self._stayed_silent, connection)
        return True

    def unwatch(self, connection: WatchedConnection) -> None:
        timer = self._watched.pop(connection, None)
        if timer is not None:
            timer.cancel()

    async def aclose(self) -> None:
        self._is_closed = True
        for connection in list(self._watched):
            self.unwatch(connection)
            if not self._loop.is_closed():
                connection.close()
        for session in (self._reused, self._single_use):
            if session is not None:
                await session.close()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def _stayed_silent(self, connection: WatchedConnection) -> None:
        self.unwatch(connection)
        self._num_silent += 1
        connection.end()

    def _reusing_session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
        if not hasattr(connector, "_factory"):  # another release of aiohttp: nothing would watch its connections
            self.keeps_alive = False
            return self.single_use
        connector._factory = functools.partial(WatchedConnection, self._loop, self)  # type: ignore[assignment]
        return _new_session(connector)


class WatchedConnection(ResponseHandler):
    """A connection that tells its pool of bytes that belong to no request."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: ConnectionPool) -> None:
        super().__init__(loop=loop)
        self._pool = pool
        self._share = pool.next_share()
        self._num_requests = 0
        self._has_response = False
        self._has_unread_bytes = False

    @property
    def _is_idle(self) -> bool:
        """Whether no request waits for a response or for the rest of one."""
        return self._num_requests == 0 or (self._has_response and (self._payload is None or self._payload.is_eof()))

    @property
    def _has_carried_all(self) -> bool:
        return self._num_requests >= self._share * self._pool.max_requests

    def set_response_params(self, **options: Any) -> None:
        """Called by aiohttp before each request, by the code that sends it."""
        self._num_requests += 1
        if self._num_requests > 1 and (trip := CURRENT_TRIP.get()) is not None:
            trip.is_on_used_connection = True
        self._has_response = False
        super().set_response_params(**options)

    def data_received(self, data: bytes) -> None:
        if data and self._is_idle:
            self._pool.distrust("sent bytes on a connection on which no request was waiting")
            self._pool.unwatch(self)
            self.end()
            return
        super().data_received(data)

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Called by aiohttp for each response; `data` is the response and its body."""
        if data[0].code >= 200:
            if self._has_response:
                self._pool.distrust("sent two responses to one request")
                self.force_close()
                return
            self._has_response = True
            if self._num_requests > 1 and data[0].code < 300 and self._is_request_unsent():
                self._pool.distrust("sent a response before it had received the request")
                self.force_close()
        super().feed_data(data, size)

    def is_connected(self) -> bool:
        """Also asks the operating system for unread bytes, before aiohttp uses an idle connection again."""
        if not super().is_connected():
            return False
        if self._num_requests and self._is_idle and _is_readable(self.transport):
            self._has_unread_bytes = True
            return False
        return True

    @property
    def should_close(self) -> bool:
        return super().should_close or self._has_carried_all

    def close(self) -> None:
        """Called by aiohttp. Watches the connection first if it carried its last request and nothing is wrong."""
        is_done = self._has_unread_bytes or self._has_carried_all
        if is_done and self._is_idle and super().is_connected() and not super().should_close and self._pool.watch(self):
            return
        self.end()

    def end(self) -> None:
        super().close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._pool.unwatch(self)
        super().connection_lost(exc)

    def _is_request_unsent(self) -> bool:
        return self.transport is not None and self.transport.get_write_buffer_size() > 0


def origin_of(url: str) -> str:
    """Returns scheme, host and port of an address, without a user and a password."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _new_session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
        auto_decompress=False,  # the client decompresses under a limit
    )


def _is_readable(transport: asyncio.Transport | None) -> bool:
    """Whether bytes, or the end of the connection, wait to be read."""
    socket = None if transport is None else transport.get_extra_info("socket")
    if socket is None or socket.fileno() < 0:
        return False
    poller = select.poll()
    poller.register(socket.fileno(), select.POLLIN)
    return bool(poller.poll(0))
