"""A chat-completions server on 127.0.0.1 whose answers a test writes, and helpers to write them.

`async with ScriptedServer(answer) as server:` calls `answer(request)` for each request, where `request` has the parsed
body and the headers, and sends what it returns: a mapping as JSON, or an aiohttp response as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass(frozen=True)
class Request:
    path: str
    body: Any
    headers: Mapping[str, str]

    @property
    def user_prompt(self) -> str:
        return str(self.body["messages"][-1]["content"])


Answer = Callable[[Request], Any]


@dataclass
class ScriptedServer:
    """`requests` holds everything that was asked for a verdict; a GET is answered by `look`, and kept in `looks`."""

    answer: Answer
    look: Answer = lambda _: web.Response(status=404)
    looks: list[Request] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    url: str = ""
    port: int = 0  # any that is free

    async def __aenter__(self) -> ScriptedServer:
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _handle(self, http_request: web.Request) -> web.StreamResponse:
        is_look = http_request.method == "GET"
        body = None if is_look else await http_request.json()
        request = Request(http_request.path, body, http_request.headers)
        (self.looks if is_look else self.requests).append(request)
        answer = (self.look if is_look else self.answer)(request)
        if isinstance(answer, Awaitable):
            answer = await answer
        return answer if isinstance(answer, web.StreamResponse) else web.json_response(answer)


@contextlib.asynccontextmanager
async def raw_server(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """A server below HTTP, for answers that no HTTP server would give."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await handle(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    return head + await reader.readexactly(length)


def completion(
    text: str | None, *, usage: tuple[int, int] | None = (100, 20), finish_reason: str = "stop", **message: Any
) -> dict[str, Any]:
    """A chat completion as servers give it."""
    answer: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "scripted",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, **message},
                "finish_reason": finish_reason,
                "logprobs": None,
            }
        ],
    }
    if usage is not None:
        answer["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    return answer


def verdict(reason: str = "as it should be", **scores: object) -> str:
    return json.dumps({"reason": reason, **(scores or {"correctness": 7})})


async def _serve_until_told() -> None:
    """Run as a program: one verdict for everyone, until standard input ends. Says its address first."""
    canned = json.dumps(completion(verdict("short and right", correctness=7))).encode()

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=canned, content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    sys.stdout.write(f"http://127.0.0.1:{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(_serve_until_told())
