"""The HTTP client of all services: it sends and receives JSON, and raises every failure as a `CallError`.

Always true: a request returns parsed JSON or raises a `CallError`. No message holds a key, neither one that was sent
nor one that the server invented. The client holds at most `max_body_bytes` of an answer. Connections close at the
latest when their event loop ends. The client does not retry, wait or limit, because the agent does, with one exception:
if the server has just closed an idle connection, the client sends the request once more, on a new connection, before
it reports a failure.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.parse
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from rewardflow.errors import CallError, RateLimited, ServiceError, Unparsable
from rewardflow.observe.redact import REDACTED, redact
from rewardflow.reward.code.current_call import report_headers
from rewardflow.reward.limits.rate_limit_headers import read_retry_after_s
from rewardflow.services.http.proxies import EnvironmentProxies
from rewardflow.types import EMPTY

if TYPE_CHECKING:
    import aiohttp

MAX_BODY_BYTES = 8 * 2**20
KEEP_ALIVE_S = 4.0  # vLLM and others close idle connections after 5 s; closing earlier avoids using a closed one
_STALE_WITHIN_S = 0.25
MAX_EXCERPT_CHARS = 500

_MAX_ERROR_BODY_BYTES = 16 * 1024
_MIN_SECRET_CHARS = 4  # a shorter text would match inside ordinary words
_RETRYABLE_4XX = frozenset({408, 409, 425})
_HOPELESS_5XX = frozenset({501, 505})
_MAX_CHECKED_BYTES = 16_384  # longer bodies are lists of log-probs, which would take 8 ms each
_JSON_HEADERS = {"Content-Type": "application/json", "Accept": "application/json"}


class HttpClient:
    """Keeps connections to any number of hosts, for each event loop, and opens them again after `aclose`."""

    def __init__(self, *, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        import aiohttp  # noqa: F401  takes 0.25 s: better here than in the first call

        self._max_body_bytes = max_body_bytes
        self._lifetimes: dict[asyncio.AbstractEventLoop, _Lifetime] = {}

    async def post_json(self, url: str, payload: Mapping[str, Any], *, headers: Mapping[str, str] = EMPTY) -> Any:
        """Returns the server's JSON answer. Raises every failure as a `CallError`."""
        return await self._exchange("POST", url, _dump(payload), headers)

    async def get_json(self, url: str, *, headers: Mapping[str, str] = EMPTY) -> Any:
        """Sends a GET request; otherwise works as `post_json`."""
        return await self._exchange("GET", url, None, headers)

    async def aclose(self) -> None:
        """Closes the connections of the running loop and of loops that have ended."""
        running = asyncio.get_running_loop()
        for loop in [loop for loop in list(self._lifetimes) if loop is running or loop.is_closed()]:
            await self._lifetimes.pop(loop).aclose()

    async def _exchange(self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]) -> Any:
        outcome = await self._try(method, url, body, headers)
        if isinstance(outcome, CallError):  # raised outside aiohttp's `except`, because its errors may hold headers
            raise outcome
        report_headers(outcome.headers)
        if not 200 <= outcome.status < 300:
            raise _refusal(url, outcome, headers)
        try:
            answer = orjson.loads(outcome.body)
        except orjson.JSONDecodeError:
            problem = "with text that is not JSON"
        else:
            if not _repeats_a_key(outcome.body):
                return answer
            problem = "with JSON in which a key is given twice"
        raise Unparsable(f"{_place(url)} answered {outcome.status} {problem}: {excerpt_of(outcome.body, headers)}")

    async def _try(self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]) -> _Answer | CallError:
        import aiohttp

        request = _Request(method, url, body, {**_JSON_HEADERS, **headers})
        sessions = await self._sessions_of_this_loop()
        try:
            trip = _Trip()
            try:
                return await self._send(sessions.pooled, request, sessions.proxies, trip)
            except aiohttp.ClientConnectionError:
                if not trip.is_stale:
                    raise
            return await self._send(sessions.fresh(), request, sessions.proxies, _Trip())
        except aiohttp.InvalidURL:
            return ServiceError(f"{_place(url)} is not an address", retryable=False)
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not sessions.is_closed:
                raise
            return ServiceError(f"no answer from {_place(url)}: {_describe_error(error, headers)}")

    async def _send(
        self, session: aiohttp.ClientSession, request: _Request, proxies: EnvironmentProxies, trip: _Trip
    ) -> _Answer | CallError:
        import aiohttp

        url, headers = request.url, request.headers
        route: dict[str, Any] = {}
        if (proxy := proxies.proxy_of(url)) is not None:
            is_tunnel = url.startswith("https:")  # without a tunnel the proxy reads the request itself
            route = {"proxy": proxy.url, "proxy_headers": proxy.headers if is_tunnel else None}
            headers = headers if is_tunnel else {**headers, **proxy.headers}
        async with session.request(
            request.method,
            url,
            data=request.body,
            headers=headers,
            allow_redirects=False,
            trace_request_ctx=trip,
            **route,
        ) as response:
            trip.is_answered = True
            is_error = not 200 <= response.status < 300
            limit = _MAX_ERROR_BODY_BYTES if is_error else self._max_body_bytes
            try:
                received = await _read(response, limit)
            except (aiohttp.ClientError, OSError, EOFError) as error:
                if not is_error:
                    return Unparsable(f"the answer of {_place(url)} broke off: {_describe_error(error, headers)}")
                received = b""
            if len(received) > limit:
                response.close()  # a new connection costs less than reading the rest
                if not is_error:
                    return Unparsable(f"the answer of {_place(url)} must be at most {limit} bytes, and is longer")
            return _Answer(response.status, response.headers, received)

    async def _sessions_of_this_loop(self) -> _Sessions:
        loop = asyncio.get_running_loop()
        lifetime = self._lifetimes.get(loop)
        if lifetime is not None and not lifetime.sessions.is_closed:
            return lifetime.sessions
        lifetime = self._lifetimes[loop] = _Lifetime(self._lifetimes)
        await lifetime.begin()
        for ended in [other for other in list(self._lifetimes) if other.is_closed()]:
            await self._lifetimes.pop(ended).aclose()
        return lifetime.sessions


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    url: str
    body: bytes | None
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class _Trip:
    """The state of one request that decides whether to send it again."""

    __slots__ = ("began_s", "is_answered", "is_on_used_connection")

    def __init__(self) -> None:
        self.is_answered = False
        self.is_on_used_connection = False
        self.began_s = time.monotonic()

    @property
    def is_stale(self) -> bool:
        """Whether a reused connection broke at once without an answer, because the server had already closed it.

        After a later break the server may have worked on the request: then the agent retries, and counts the attempt.
        """
        is_soon = time.monotonic() - self.began_s < _STALE_WITHIN_S
        return self.is_on_used_connection and not self.is_answered and is_soon


class _Lifetime:
    """Keeps the sessions of one event loop from its first request until `aclose` or the end of the loop.

    A loop closes its asynchronous generators when it ends; this is the only way to notice its end.
    """

    def __init__(self, others: dict[asyncio.AbstractEventLoop, _Lifetime]) -> None:
        self.sessions = _Sessions()
        self._kept = self._keep(others, asyncio.get_running_loop())

    async def begin(self) -> None:
        await anext(self._kept)

    async def aclose(self) -> None:
        await self._kept.aclose()
        await self.sessions.aclose()  # for a loop that ended without closing its generators

    async def _keep(
        self, others: dict[asyncio.AbstractEventLoop, _Lifetime], loop: asyncio.AbstractEventLoop
    ) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            if others.get(loop) is self:
                del others[loop]
            await self.sessions.aclose()


class _Sessions:
    """The connections of one event loop: a pool, and a session for connections that are used once."""

    def __init__(self) -> None:
        import aiohttp

        self.proxies = EnvironmentProxies()

        tracing = aiohttp.TraceConfig()
        tracing.on_connection_reuseconn.append(_note_reuse)
        self.pooled = _new_session(aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S), tracing)
        self._fresh: aiohttp.ClientSession | None = None

    @property
    def is_closed(self) -> bool:
        return self.pooled.closed

    def fresh(self) -> aiohttp.ClientSession:
        """Returns the session that never reuses connections: if one pooled connection is stale, others are too."""
        import aiohttp

        if self._fresh is None:
            self._fresh = _new_session(aiohttp.TCPConnector(limit=0, force_close=True))
        return self._fresh

    async def aclose(self) -> None:
        for session in (self.pooled, self._fresh):
            if session is not None:
                await session.close()


def _new_session(connector: aiohttp.TCPConnector, tracing: aiohttp.TraceConfig | None = None) -> aiohttp.ClientSession:
    import aiohttp

    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
        trace_configs=[] if tracing is None else [tracing],
    )


async def _note_reuse(_session: aiohttp.ClientSession, context: Any, _params: Any) -> None:
    context.trace_request_ctx.is_on_used_connection = True


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Reads the body, and stops soon after `limit` bytes."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > limit:
            break
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


class _RepeatedKey(Exception):
    """Raised inside the parser, which offers no other way to end it."""


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        raise _RepeatedKey


_check_keys = json.JSONDecoder(object_pairs_hook=_refuse_repeated_keys, parse_int=float).decode


def _repeats_a_key(body: bytes) -> bool:
    """Whether an object in valid JSON gives a key twice: parsers disagree on which of the values counts."""
    if len(body) > _MAX_CHECKED_BYTES:
        return False
    try:
        _check_keys(body.decode())
    except (_RepeatedKey, RecursionError):  # no honest answer is nested that deep
        return True
    return False


def _dump(payload: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(payload if isinstance(payload, dict) else dict(payload), option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:  # most likely half a surrogate pair, which policies sometimes emit
        return orjson.dumps(_encodable(payload), option=orjson.OPT_SERIALIZE_NUMPY)


def _encodable(value: Any) -> Any:
    """Replaces characters that cannot be encoded with U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(item) for item in value]
    return value


def _refusal(url: str, answer: _Answer, sent: Mapping[str, str]) -> CallError:
    """Turns a status outside 2xx into an error."""
    status = answer.status
    message = f"{_place(url)} answered {status}: {excerpt_of(answer.body, sent)}"
    if status == 429:
        return RateLimited(message, headers=_about_limits(answer.headers))
    if 300 <= status < 400:
        target = redact(answer.headers.get("Location", "nowhere"))[:MAX_EXCERPT_CHARS]
        message = f"{_place(url)} answered {status}: redirects are not followed; use the address it names, {target}"
        return ServiceError(message, status=status, retryable=False)
    is_retryable = status in _RETRYABLE_4XX or (status >= 500 and status not in _HOPELESS_5XX)
    wait_s = read_retry_after_s(answer.headers) if is_retryable else None
    return ServiceError(message, status=status, retryable=is_retryable, retry_after_s=wait_s)


def _about_limits(headers: Mapping[str, str]) -> dict[str, str]:
    lowered = {name.lower(): value for name, value in headers.items()}
    return {
        name: value
        for name, value in lowered.items()
        if "ratelimit" in name or name.startswith("retry-after") or name == "date"
    }


def excerpt_of(body: bytes, sent: Mapping[str, str] = EMPTY) -> str:
    """Returns the start of a body for an error message: without secrets, on one line."""
    text = body[:_MAX_ERROR_BODY_BYTES].decode("utf-8", "replace")
    shown = " ".join(without_secrets(text, sent).split())
    if not shown:
        return "(an empty body)"
    return shown if len(shown) <= MAX_EXCERPT_CHARS else f"{shown[: MAX_EXCERPT_CHARS - 3]}..."


def without_secrets(text: str, sent: Mapping[str, str]) -> str:
    """Removes secrets and the values of sent headers: a key may be in a header whose name does not suggest it."""
    for name, value in sent.items():
        if name in _JSON_HEADERS:
            continue
        for secret in {value, value.rpartition(" ")[2]}:
            if len(secret) >= _MIN_SECRET_CHARS:
                text = text.replace(secret, REDACTED).replace(urllib.parse.quote(secret, safe=""), REDACTED)
    return redact(text)


def _describe_error(error: BaseException, sent: Mapping[str, str]) -> str:
    text = str(error).strip()
    described = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return without_secrets(described, sent)[:MAX_EXCERPT_CHARS]


def _place(url: str) -> str:
    """Returns the address for an error message, without its query, which may hold a key, and without a password."""
    return redact(url.partition("?")[0])
