"""The judge's HTTP server: one handler for each path, on one event loop.

Always true: a call that a limit or an outage refuses does not count as an attempt of its request, because such refusals
depend on other calls; everything else about a call follows from its plan. A client that disconnects ends its call.
Closing ends all calls, also those that hang, within a fraction of a second. No page of another site can use `/admin`
through a browser.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import orjson
from aiohttp import web

from rewardflow.errors import InvalidInput
from rewardflow.mock_judge.batch_endpoints import BatchEndpoints
from rewardflow.mock_judge.batch_orders import BatchOrders
from rewardflow.mock_judge.behaviour import Behaviour, PlannedReply
from rewardflow.mock_judge.chat_request import CHARS_A_TOKEN, ChatRequest, read_chat_request
from rewardflow.mock_judge.limits import Limits
from rewardflow.mock_judge.marking import share_of
from rewardflow.mock_judge.prompt_cache import PromptCache
from rewardflow.mock_judge.request_counts import CallRecord, Counts
from rewardflow.mock_judge.response_bodies import (
    BAD_GATEWAY_PAGE,
    ChatCompletion,
    complete,
    completion_body,
    error_body,
    huge_body,
    models_body,
)
from rewardflow.mock_judge.settings import MockJudgeSettings
from rewardflow.observe.own_address import uses_own_address

_ADMIN: Final = "/admin/"
_JSON: Final = "application/json"
_MAX_REQUEST_BYTES: Final = 64 * 2**20
_BACKLOG: Final = 4096  # thousands of clients may connect at once
_CLOSE_S: Final = 0.1
_DRIPS: Final = 20
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)

_Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Server:
    """Serves from `start` to `close`, in the loop that called `start`."""

    def __init__(self, settings: MockJudgeSettings, behaviour: Behaviour, counts: Counts) -> None:
        self._settings = settings
        self._behaviour = behaviour
        self._counts = counts
        self._limits = Limits(settings)
        self._cache = PromptCache(CHARS_A_TOKEN)
        self.orders = BatchOrders(settings, behaviour, counts)
        self._batches = BatchEndpoints(self.orders, lost_creations=settings.lost_creations)
        self._handlers: dict[tuple[str, str], _Handler] = {
            ("POST", "/v1/chat/completions"): self._chat_completions,
            ("GET", "/v1/models"): self._models,
            ("GET", "/stats"): self._stats,
            ("GET", "/health"): self._health,
            ("POST", "/admin/down"): self._go_down,
            ("POST", "/admin/up"): self._come_up,
        }
        self._paths = {path for _, path in self._handlers}

    async def start(self) -> int:
        """Starts to listen and returns the port."""
        self._loop = asyncio.get_running_loop()
        self._web_server = web.Server(
            self._handle, request_factory=self._make_request, handler_cancellation=True, access_log=None
        )
        host, port = self._settings.host, self._settings.port
        try:
            self._listener = await self._loop.create_server(self._web_server, host, port, backlog=_BACKLOG)
        except OSError as error:
            reason = error.strerror or error
            raise InvalidInput(f"host and port must be free to listen on, got {host}:{port} ({reason})") from error
        bound: int = self._listener.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        self._listener.close()
        self._web_server.pre_shutdown()
        await self._web_server.shutdown(_CLOSE_S)

    def _make_request(
        self, message: Any, payload: Any, protocol: Any, writer: Any, task: asyncio.Task[None]
    ) -> web.BaseRequest:
        """Does what aiohttp does, but allows larger requests: a judge's prompt may be larger than 1 MiB."""
        return web.BaseRequest(message, payload, protocol, writer, task, self._loop, client_max_size=_MAX_REQUEST_BYTES)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        handler = self._handlers.get((request.method, request.path))
        if request.path.startswith(_ADMIN) and not uses_own_address(request.headers, self._settings.host):
            return _error(403, "the mock judge takes orders under its own address only", "permission_error")
        if handler is not None:
            return await handler(request)
        if self._batches.serves(request.path):
            if self._counts.is_down:
                return _down()
            return await self._batches.handle(request) or _reset(request)
        if request.path in self._paths:
            return _error(405, f"{request.path} does not take {request.method}", "invalid_request_error")
        served = ", ".join((*sorted(self._paths), "and batches under /v1/files, /v1/batches and /v1/messages/batches"))
        return _error(404, f"the mock judge serves {served}", "invalid_request_error")

    # -- small handlers --

    async def _models(self, _: web.BaseRequest) -> web.Response:
        return web.Response(body=models_body(self._settings.models[0].name), content_type=_JSON)

    async def _stats(self, request: web.BaseRequest) -> web.Response:
        counts = self._counts.statistics().to_json()
        if "requests" in request.query:
            counts["requests"] = self._counts.times_by_request()
        return web.Response(body=orjson.dumps(counts), content_type=_JSON)

    async def _health(self, _: web.BaseRequest) -> web.Response:
        return _down() if self._counts.is_down else web.Response(body=b'{"status":"ok"}', content_type=_JSON)

    async def _go_down(self, _: web.BaseRequest) -> web.Response:
        self._counts.is_down = True
        return web.Response(body=b'{"is_down":true}', content_type=_JSON)

    async def _come_up(self, _: web.BaseRequest) -> web.Response:
        self._counts.is_down = False
        return web.Response(body=b'{"is_down":false}', content_type=_JSON)

    # -- judging --

    async def _chat_completions(self, request: web.BaseRequest) -> web.StreamResponse:
        with self._counts.call() as record:
            body = await request.read()
            try:
                chat = read_chat_request(body, takes_schema=self._settings.takes_schema)
                share = share_of(self._settings, chat.prompt)
            except InvalidInput as error:
                record.outcome = "bad_request"
                return _error(400, str(error), "invalid_request_error")
            if self._counts.is_down:
                record.outcome = "down"
                return _down()
            return await self._limited(request, chat, share, record)

    async def _limited(
        self, request: web.BaseRequest, chat: ChatRequest, share: float | None, record: CallRecord
    ) -> web.StreamResponse:
        """Answers if the limits admit the call. Reserves the tokens that it may use until its real use is known."""
        key = self._behaviour.key_of(chat.content)
        held = chat.prompt_tokens + (chat.max_tokens or 0)
        refusal = self._limits.admit(self._loop.time(), held)
        if refusal is not None:
            record.outcome = f"limited_{refusal.limit}"
            return self._too_many(f"the limit on {refusal.limit} is reached", refusal.retry_after_s)
        used = 0
        try:
            times_before = self._counts.admit(key)
            plan = self._behaviour.plan(key, times_before)
            completion = complete(chat, plan, self._settings.seed, share)
            if self._settings.caches_prompts:
                reused = self._cache.add(f"{chat.instructions}\n{chat.prompt}")
                completion = replace(completion, cached_tokens=min(reused, completion.prompt_tokens))
            used = completion.prompt_tokens + len(completion.tokens)
            call = _Call(request, record, plan, completion, f"{key.hex()[:16]}-{times_before}", chat.num_log_probs)
            return await self._play(call)
        finally:
            self._limits.leave(self._loop.time(), held - used)

    async def _play(self, call: _Call) -> web.StreamResponse:
        fault = call.plan.fault
        if fault is not None:
            call.record.outcome = fault
        if fault in ("429", "429_retry_after"):
            wait_s = self._settings.retry_after_s * self._settings.scale
            return self._too_many("too many requests", wait_s if fault == "429_retry_after" else None)
        if fault == "hang":
            await asyncio.sleep(self._settings.hang_s * self._settings.scale)
            return _reset(call.request)
        if call.plan.delay_s > 0:
            await asyncio.sleep(call.plan.delay_s)
        if self._counts.is_down:  # the judge went down during this call
            call.record.outcome = "down"
            return _down()
        match fault:
            case "500":
                return _error(500, "the server had an error while processing the request", "server_error")
            case "502":
                return web.Response(status=502, body=BAD_GATEWAY_PAGE, content_type="text/html")
            case "reset":
                return _reset(call.request)
        return await self._answer(call)

    async def _answer(self, call: _Call) -> web.StreamResponse:
        """Sends a response with status 200, with the plan's fault in its body."""
        fault, settings = call.plan.fault, self._settings
        model = settings.model_after(self._counts.num_answers)
        self._counts.add_answer(call.completion.prompt_tokens, len(call.completion.tokens))
        headers = self._limits.headers(self._loop.time())
        num_log_probs = call.num_log_probs if settings.gives_log_probs else None
        if fault == "huge_body":
            response = await _begin(call.request, headers)
            for block in huge_body(
                call.completion, call_id=call.call_id, model=model, num_bytes=settings.huge_body_bytes
            ):
                await response.write(block)
            return response
        body = completion_body(call.completion, call_id=call.call_id, model=model, num_log_probs=num_log_probs)
        match fault:
            case "truncated":
                return await _truncated(call.request, headers, body)
            case "slow_body":
                return await _slow(call.request, headers, body, settings.slow_body_s * settings.scale)
            case "malformed_body":
                body = body[: len(body) * 2 // 3]
            case None:
                call.record.outcome = "answered"
        return web.Response(body=body, content_type=_JSON, headers=headers)

    def _too_many(self, message: str, retry_after_s: float | None) -> web.Response:
        headers = self._limits.headers(self._loop.time())
        if retry_after_s is not None:
            headers["Retry-After"] = self._seconds(retry_after_s)
        return _error(429, message, "rate_limit_error", headers)

    def _seconds(self, seconds: float) -> str:
        """Writes whole seconds, as HTTP wants, or decimals on a scaled clock, where whole seconds are too coarse."""
        if self._settings.scale == 1:
            return str(math.ceil(seconds))
        return f"{math.ceil(seconds * 1000) / 1000:.3f}"


class _Call:
    """One admitted call while the server handles it."""

    __slots__ = ("call_id", "completion", "num_log_probs", "plan", "record", "request")

    def __init__(
        self,
        request: web.BaseRequest,
        record: CallRecord,
        plan: PlannedReply,
        completion: ChatCompletion,
        call_id: str,
        num_log_probs: int | None,
    ) -> None:
        self.request = request
        self.record = record
        self.plan = plan
        self.completion = completion
        self.call_id = call_id
        self.num_log_probs = num_log_probs


# ---- responses ----------------------------------------------------------------------------------------------------


def _error(status: int, message: str, kind: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=error_body(message, kind), content_type=_JSON, headers=headers)


def _down() -> web.Response:
    return _error(503, "the service is down", "service_unavailable")


async def _begin(
    request: web.BaseRequest, headers: Mapping[str, str], num_bytes: int | None = None
) -> web.StreamResponse:
    response = web.StreamResponse(headers=headers)
    response.content_type = _JSON
    response.content_length = num_bytes
    await response.prepare(request)
    return response


async def _slow(
    request: web.BaseRequest, headers: Mapping[str, str], body: bytes, duration_s: float
) -> web.StreamResponse:
    response = await _begin(request, headers, len(body))
    size = max(1, -(-len(body) // _DRIPS))
    for start in range(0, len(body), size):
        await response.write(body[start : start + size])
        await asyncio.sleep(duration_s / _DRIPS)
    return response


async def _truncated(request: web.BaseRequest, headers: Mapping[str, str], body: bytes) -> web.StreamResponse:
    response = await _begin(request, headers, len(body))
    await response.write(body[: len(body) // 2])
    if request.transport is not None:
        request.transport.close()  # flushes what was written first
    return response


def _reset(request: web.BaseRequest) -> web.Response:
    """Breaks the connection as a crash does. aiohttp needs the returned response, but no client receives it."""
    if request.transport is not None:
        connection = request.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        request.transport.abort()
    return web.Response()
