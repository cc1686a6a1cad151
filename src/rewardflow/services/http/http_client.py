"""The HTTP client of all services: it sends and receives JSON, and raises every failure as a `CallError`.

Always true: a request returns parsed JSON or raises a `CallError`. No message holds a key, neither one that was sent
nor one that the server invented. The client holds at most `max_body_bytes` of an answer. Connections close at the
latest when their event loop ends. The client sends a request once: the agent retries, waits and limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson

from rewardflow.errors import CallError, RateLimited, ServiceError, Unparsable
from rewardflow.observe.redact import redact
from rewardflow.observe.secret_values import SecretValues, parts_of_value
from rewardflow.reward.code.current_call import report_headers
from rewardflow.reward.limits.rate_limit_headers import read_retry_after_s
from rewardflow.services.http.decompression import ACCEPT_ENCODING, BadEncoding, decompress
from rewardflow.services.http.endpoint import warn_of_readable_key
from rewardflow.services.http.loop_pools import PoolsOfLoops
from rewardflow.services.http.proxies import EnvironmentProxies
from rewardflow.services.http.repeated_keys import NestedTooDeeply, repeats_a_key
from rewardflow.services.http.request_ids import HEADER, REQUEST_IDS
from rewardflow.types import EMPTY

if TYPE_CHECKING:
    import aiohttp

    from rewardflow.services.http.connection_pool import ConnectionPool, Trip, WatchSettings

MAX_BODY_BYTES = 8 * 2**20
MAX_EXCERPT_CHARS = 2_000

_MAX_ERROR_BODY_BYTES = 16 * 1024
_LARGE_BODY_BYTES = 256 * 1024
_RETRYABLE_4XX = frozenset({408, 409, 425, 498})  # 498: no capacity for Groq's tier flex
_HOPELESS_5XX = frozenset({501, 505})
_JSON_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json",
    "Accept-Encoding": ACCEPT_ENCODING,
}


class HttpClient:
    """Keeps connections to any number of hosts, for each event loop, and opens them again after `aclose`.

    With `keep_alive=False` each request has a connection of its own.
    """

    def __init__(
        self,
        *,
        max_body_bytes: int = MAX_BODY_BYTES,
        keep_alive: bool = True,
        watch: WatchSettings | None = None,
    ) -> None:
        # Imports aiohttp, which takes 0.25 s: better here than in the first call.
        from rewardflow.services.http import connection_pool  # noqa: F401

        self._max_body_bytes = max_body_bytes
        self._pools = PoolsOfLoops(keep_alive=keep_alive, watch=watch)

    async def post_json(self, url: str, payload: Mapping[str, Any], *, headers: Mapping[str, str] = EMPTY) -> Any:
        """Returns the server's JSON answer. Raises every failure as a `CallError`."""
        return await self._exchange("POST", url, encode_json(payload), headers)

    async def get_json(self, url: str, *, headers: Mapping[str, str] = EMPTY) -> Any:
        """Sends a GET request; otherwise works as `post_json`."""
        return await self._exchange("GET", url, None, headers)

    async def post_body(self, url: str, body: bytes, *, content_type: str, headers: Mapping[str, str] = EMPTY) -> Any:
        """Sends bytes of another type, such as a form with a file; otherwise works as `post_json`."""
        return await self._exchange("POST", url, body, {**headers, "Content-Type": content_type})

    async def get_lines(self, url: str, *, headers: Mapping[str, str] = EMPTY) -> AsyncGenerator[Any, None]:
        """Yields each line of a file of JSON lines. `max_body_bytes` holds for a line; the file may be longer.

        Raises every failure as a `CallError`, also one after some lines.
        """
        import aiohttp

        from rewardflow.services.http.connection_pool import CURRENT_TRIP, Trip

        warn_of_readable_key(url, headers)
        pools = await self._pools.of_running_loop()
        trip, request = Trip(), _Request("GET", url, None, {**headers, "Accept-Encoding": "identity"})
        CURRENT_TRIP.set(trip)
        problem: CallError | None = None
        try:
            async with pools.pool_of(url).session.request(
                "GET", url, allow_redirects=False, **_options(request, pools.proxies, trip)
            ) as response:
                if not 200 <= response.status < 300:
                    body = await _read(response, _MAX_ERROR_BODY_BYTES)
                    problem = _refusal(url, _Answer(response.status, response.headers, body), headers)
                else:
                    async for line in _lines(response, self._max_body_bytes):
                        yield _parsed(line, url, headers)
        except aiohttp.InvalidURL:
            problem = ServiceError(f"{_place(url)} is not an address", retryable=False, was_sent=False)
        except (aiohttp.ClientError, OSError) as error:
            problem = ServiceError(f"no whole answer from {_place(url)}: {_describe_error(error, headers)}")
        if problem is not None:  # raised outside aiohttp's `except`, because its errors may hold headers
            raise problem

    async def aclose(self) -> None:
        """Closes the connections of the running loop and of loops that have ended."""
        await self._pools.aclose()

    async def _exchange(self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]) -> Any:
        outcome = await self._try(method, url, body, headers)
        if isinstance(outcome, CallError):  # raised outside aiohttp's `except`, because its errors may hold headers
            raise outcome
        report_headers(outcome.headers)
        if not 200 <= outcome.status < 300:
            raise _refusal(url, outcome, headers)
        if len(outcome.body) <= _LARGE_BODY_BYTES:
            return _answer_in(outcome, url, headers)
        pools = await self._pools.of_running_loop()
        async with pools.large_bodies:
            await asyncio.sleep(0)
            return _answer_in(outcome, url, headers)

    async def _try(self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]) -> _Answer | CallError:
        import aiohttp

        from rewardflow.services.http.connection_pool import Trip

        warn_of_readable_key(url, headers)
        request = _Request(method, url, body, headers)
        pools = await self._pools.of_running_loop()
        try:
            pool = pools.pool_of(url)
            # Never sends twice, not even if a reused connection breaks: the server may have charged for the request, so
            # a second one needs a reservation of its own, which only the agent's retry makes.
            return await self._send(pool, pool.session, request, pools.proxies, Trip())
        except aiohttp.InvalidURL:
            return ServiceError(f"{_place(url)} is not an address", retryable=False, was_sent=False)
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not pools.is_closed:
                raise
            was_sent = not isinstance(error, aiohttp.ClientConnectorError)
            return ServiceError(f"no answer from {_place(url)}: {_describe_error(error, headers)}", was_sent=was_sent)

    async def _send(
        self,
        pool: ConnectionPool,
        session: aiohttp.ClientSession,
        request: _Request,
        proxies: EnvironmentProxies,
        trip: Trip,
    ) -> _Answer | CallError:
        import aiohttp

        from rewardflow.services.http.connection_pool import CURRENT_TRIP

        CURRENT_TRIP.set(trip)
        url, options = request.url, _options(request, proxies, trip)
        headers = options["headers"]
        async with session.request(
            request.method, url, data=request.body, allow_redirects=False, **options
        ) as response:
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
        mistaken = _mistaken(pool, trip, response.headers, received)
        return mistaken or await _decoded(_Answer(response.status, response.headers, received), url, limit)


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    url: str
    body: bytes | None
    headers: Mapping[str, str]


def _options(request: _Request, proxies: EnvironmentProxies, trip: Trip) -> dict[str, Any]:
    """Returns the headers of a request, and the proxy that it goes through, as aiohttp takes them."""
    headers = {**_JSON_HEADERS, HEADER: trip.request_id, **request.headers}
    proxy = proxies.proxy_of(request.url)
    if proxy is None:
        return {"headers": headers}
    if request.url.startswith("https:"):
        return {"headers": headers, "proxy": proxy.url, "proxy_headers": proxy.headers}
    return {"headers": {**headers, **proxy.headers}, "proxy": proxy.url}  # without a tunnel the proxy reads them itself


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


def _mistaken(pool: ConnectionPool, trip: Trip, headers: Mapping[str, str], body: bytes) -> ServiceError | None:
    """Returns an error if the answer belongs, or may belong, to another request."""
    if REQUEST_IDS.names_another(trip.request_id, headers, body):
        pool.distrust("answered with the id of another request")
        return ServiceError(f"{pool.origin} answered with the id of another request ({HEADER})")
    if trip.is_on_used_connection and not pool.keeps_alive:
        return ServiceError(
            f"{pool.origin} sent bytes that no request was waiting for, and this answer came on a connection that was "
            "used before: it may be the answer to another request"
        )
    return None


async def _decoded(answer: _Answer, url: str, limit: int) -> _Answer | CallError:
    """Returns the answer without compression, or an error if it is too long or damaged."""
    is_error = not 200 <= answer.status < 300
    problem, body = None, answer.body
    if len(body) > limit:
        problem = f"must be at most {limit} bytes, and is longer"
    elif (encoding := answer.headers.get("Content-Encoding")) is not None:
        try:
            body = await decompress(body, encoding, limit)
        except BadEncoding as error:
            problem = f"cannot be read: {error}"
        else:
            if len(body) > limit:
                problem = f"must be at most {limit} bytes after decompression, and is longer"
    if problem is None or is_error:  # an error needs only the start of its body
        return answer if body is answer.body else replace(answer, body=body)
    return Unparsable(f"the answer of {_place(url)} {problem}")


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


async def _lines(response: aiohttp.ClientResponse, limit: int) -> AsyncGenerator[bytes, None]:
    """Yields the lines of a body that are not empty. Raises `Unparsable` for one of more than `limit` bytes."""
    rest = b""
    async for chunk in response.content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        if max(map(len, (*whole, rest))) > limit:
            raise Unparsable(f"a line of an answer must be at most {limit} bytes, and is longer")
        for line in whole:
            if line.strip():
                yield line
    if rest.strip():
        yield rest


def _parsed(line: bytes, url: str, headers: Mapping[str, str]) -> Any:
    try:
        parsed = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise Unparsable(f"a line of {_place(url)} is not JSON: {excerpt_of(line, headers)}") from None
    if (problem := _ambiguity(line, parsed)) is not None:
        raise Unparsable(f"a line of {_place(url)} is {problem}: {excerpt_of(line, headers)}")
    return parsed


def _answer_in(outcome: _Answer, url: str, headers: Mapping[str, str]) -> Any:
    """Returns the JSON of an answer with a status of 2xx."""
    try:
        answer = orjson.loads(outcome.body)
    except orjson.JSONDecodeError:
        problem = "with text that is not JSON"
    else:
        if (ambiguity := _ambiguity(outcome.body, answer)) is None:
            return answer
        problem = f"with {ambiguity}"
    raise Unparsable(f"{_place(url)} answered {outcome.status} {problem}: {excerpt_of(outcome.body, headers)}")


def _ambiguity(text: bytes, parsed: Any) -> str | None:
    """Says why valid JSON cannot be believed: two programs may read it differently."""
    try:
        return "JSON in which a key is given twice" if repeats_a_key(text, parsed) else None
    except NestedTooDeeply:
        return "JSON that is nested too deeply"


def encode_json(payload: Mapping[str, Any]) -> bytes:
    """Returns the payload as JSON. Characters that cannot be encoded become U+FFFD."""
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
    given = (value for name, value in sent.items() if name not in _JSON_HEADERS)
    return redact(SecretValues(part for value in given for part in parts_of_value(value)).redact(text))


def _describe_error(error: BaseException, sent: Mapping[str, str]) -> str:
    text = str(error).strip()
    described = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return without_secrets(described, sent)[:MAX_EXCERPT_CHARS]


def _place(url: str) -> str:
    """Returns the address for an error message, without its query, which may hold a key, and without a password."""
    return redact(url.partition("?")[0])
