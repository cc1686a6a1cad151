"""What the HTTP client makes of answers, of refusals and of servers that misbehave."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import subprocess
import sys
import traceback
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from scripted_server import ScriptedServer, raw_server, read_request

from rewardflow.errors import CallError, RateLimited, ServiceError, Unparsable
from rewardflow.reward.code.current_call import Call, enter_call
from rewardflow.services.http.connection_pool import WatchSettings
from rewardflow.services.http.http_client import HttpClient

REUSING = WatchSettings(num_first=0)  # reuses connections from the first request on
KEY = "correct-horse-battery-9"


async def post(url: str, client: HttpClient | None = None, **headers: str) -> Any:
    client = client or HttpClient()
    try:
        return await client.post_json(url, {"q": 1}, headers=headers)
    finally:
        await client.aclose()


def answer_of(response: Callable[[], Any], **headers: str) -> Any:
    """What `post_json` gives or raises for a server's response."""

    async def run() -> Any:
        async with ScriptedServer(lambda request: response()) as server:
            return await post(server.url, **headers)

    return asyncio.run(run())


def answer_of_raw(handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> Any:
    async def run() -> Any:
        async with raw_server(handle) as url:
            return await post(url)

    return asyncio.run(run())


def test_a_json_answer_is_given_as_it_is() -> None:
    assert answer_of(lambda: {"a": [1, None, "\u00e9"]}) == {"a": [1, None, "\u00e9"]}


@pytest.mark.parametrize(
    "body",
    [
        '{"choices": [1], "choices": [2]}',
        '{"choices": [{"message": {"content": "2", "content": "10"}}]}',
        '{"score": 1, "sc\\u006fre": 0}',
        '[{"a": {}}, {"a": 1, "b": 2, "a": 1}]',
        '{"logprobs": [' + "0.25, " * 10_000 + '0], "score": 1, "score": 0}',
    ],
    ids=["outer", "inner", "escaped", "in-a-list", "after-60-kb"],
)
def test_json_in_which_a_key_is_given_twice_is_unparsable(body: str) -> None:
    with pytest.raises(Unparsable, match="a key is given twice"):
        answer_of(lambda: web.Response(text=body, content_type="application/json"))


def test_json_with_the_same_key_in_several_objects_is_read() -> None:
    body = {"a": [{"a": 1}, {"a": 2}], "b": {"a": 10**15}}
    assert answer_of(lambda: body) == body


def test_json_of_hundreds_of_levels_is_unparsable() -> None:
    with pytest.raises(Unparsable, match="nested too deeply"):
        answer_of(lambda: web.Response(text="[" * 300 + "]" * 300, content_type="application/json"))


def test_limits_that_a_response_announces_are_reported_to_the_call() -> None:
    call = Call(rollouts=())
    enter_call(call)
    try:
        answer_of(lambda: web.json_response({}, headers={"X-RateLimit-Limit-Requests": "600", "X-Other": "1"}))
    finally:
        enter_call(None)
    assert call.headers == {"x-ratelimit-limit-requests": "600"}


def test_a_429_is_rate_limited_and_carries_only_headers_about_limits() -> None:
    headers = {"Retry-After": "7", "X-RateLimit-Limit-Requests": "60", "X-Secret": "s"}
    with pytest.raises(RateLimited) as caught:
        answer_of(lambda: web.Response(status=429, text="slow down", headers=headers))
    told = dict(caught.value.headers or {})
    told.pop("date")
    assert told == {"retry-after": "7", "x-ratelimit-limit-requests": "60"}


@pytest.mark.parametrize(
    ("status", "is_retryable"),
    [
        *((400, False), (401, False), (403, False), (404, False), (422, False)),
        *((408, True), (409, True), (425, True), (498, True), (500, True), (502, True), (503, True), (529, True)),
        *((501, False), (505, False)),
    ],
)
def test_other_statuses_are_service_errors_and_say_whether_asking_again_can_help(
    status: int, is_retryable: bool
) -> None:
    with pytest.raises(ServiceError, match=f"answered {status}: why not") as caught:
        answer_of(lambda: web.Response(status=status, text="why not"))
    assert (caught.value.status, caught.value.retryable) == (status, is_retryable)


def test_a_503_with_retry_after_says_how_long_to_wait() -> None:
    with pytest.raises(ServiceError) as caught:
        answer_of(lambda: web.Response(status=503, headers={"Retry-After": "11"}))
    assert caught.value.retry_after_s == 11


def test_a_redirect_is_not_followed_and_its_target_is_named() -> None:
    async def run() -> int:
        async with ScriptedServer(lambda request: {}) as other:
            moved = web.Response(status=307, headers={"Location": f"{other.url}/v2"})
            async with ScriptedServer(lambda request: moved) as server:
                with pytest.raises(ServiceError, match=f"redirects are not followed.*{other.url}/v2") as caught:
                    await post(server.url)
            assert not caught.value.retryable
            return len(other.requests)

    assert asyncio.run(run()) == 0


@pytest.mark.parametrize("text", ["", "<html>It works</html>", '{"a": 1', '{"a": NaN}', "[" * 5000])
def test_a_body_that_is_not_json_is_unparsable(text: str) -> None:
    with pytest.raises(Unparsable, match="not JSON"):
        answer_of(lambda: web.Response(text=text, content_type="application/json"))


def test_an_error_shows_at_most_2000_characters_of_the_body() -> None:
    with pytest.raises(ServiceError) as caught:
        answer_of(lambda: web.Response(status=500, text="x" * 100_000))
    assert 1900 < len(str(caught.value)) < 2100


@pytest.mark.parametrize("is_chunked", [True, False])
def test_a_body_beyond_the_limit_is_unparsable_and_not_read_to_its_end(is_chunked: bool) -> None:
    sent = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        length = b"Transfer-Encoding: chunked" if is_chunked else b"Content-Length: 100000000"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + length + b"\r\n\r\n")
        part = b" " * 65536
        while sent < 100_000_000:
            writer.write(b"10000\r\n" + part + b"\r\n" if is_chunked else part)
            await writer.drain()
            sent += len(part)

    async def run() -> None:
        async with raw_server(endless) as url:
            await post(url, HttpClient(max_body_bytes=100_000))

    with pytest.raises(Unparsable, match="at most 100000 bytes"):
        asyncio.run(run())
    assert sent < 100_000_000


def test_other_code_runs_between_two_large_answers() -> None:
    num_answers = 8
    body = json.dumps({f"key {number}": number for number in range(100_000)})

    async def run() -> list[int]:
        turn = 0
        turns: list[int] = []

        async def count() -> None:
            nonlocal turn
            while len(turns) < num_answers:
                await asyncio.sleep(0)
                turn += 1

        async with ScriptedServer(lambda request: web.Response(text=body)) as server:
            client = HttpClient()

            async def ask() -> None:
                await client.post_json(server.url, {})
                turns.append(turn)

            await asyncio.gather(count(), *(ask() for _ in range(num_answers)))
            await client.aclose()
        return turns

    turns = asyncio.run(run())
    assert len(set(turns)) == num_answers


def test_a_body_that_breaks_off_is_unparsable() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"choices": [')
        await writer.drain()

    with pytest.raises(Unparsable, match="broke off"):
        answer_of_raw(cut)


def test_a_5xx_whose_body_breaks_off_is_still_that_5xx() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 1000\r\n\r\nups")
        await writer.drain()

    with pytest.raises(ServiceError) as caught:
        answer_of_raw(cut)
    assert caught.value.status == 502


@pytest.mark.parametrize("garbage", [b"", b"SSH-2.0-OpenSSH_9.6\r\n\r\n"])
def test_a_server_that_does_not_speak_http_is_a_retryable_service_error(garbage: bytes) -> None:
    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(garbage)

    with pytest.raises(ServiceError, match="no answer from http://127") as caught:
        answer_of_raw(rude)
    assert caught.value.retryable


def test_nobody_listening_is_a_retryable_service_error() -> None:
    async def run() -> None:
        async with ScriptedServer(lambda request: {}) as server:
            url = server.url
        await post(url)

    with pytest.raises(ServiceError, match="no answer from") as caught:
        asyncio.run(run())
    assert caught.value.retryable


def test_what_is_no_address_is_refused_for_good() -> None:
    with pytest.raises(ServiceError, match="not an address") as caught:
        asyncio.run(post("http://:80:80/"))
    assert not caught.value.retryable


# -- connections --


def once_then_close(num_connections: list[int]) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
    """Keeps a connection open after the first answer, and drops it when the second request has arrived."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        num_connections[0] += 1
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        await read_request(reader)

    return handle


def test_a_request_that_a_reused_connection_drops_is_a_failure_and_is_not_sent_again() -> None:
    num_connections = [0]

    async def run() -> None:
        client = HttpClient(watch=REUSING)
        async with raw_server(once_then_close(num_connections)) as url:
            assert await client.post_json(url, {}) == {}
            with pytest.raises(ServiceError, match="no answer from"):  # the server may have charged for it
                await client.post_json(url, {})
            assert await client.post_json(url, {}) == {}
            await client.aclose()

    asyncio.run(run())
    assert num_connections == [2]


def test_a_new_connection_that_the_server_drops_is_not_tried_again() -> None:
    num_connections = 0

    async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_connections
        num_connections += 1
        await read_request(reader)

    with pytest.raises(ServiceError):
        answer_of_raw(drop)
    assert num_connections == 1


def test_connections_are_reused() -> None:
    ports: set[object] = set()

    async def run() -> None:
        async def answer(request: web.Request) -> web.Response:
            ports.add(request.transport.get_extra_info("peername"))
            return web.json_response({})

        app = web.Application()
        app.router.add_post("/", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        client = HttpClient(watch=REUSING)
        for _ in range(5):
            await client.post_json(f"http://127.0.0.1:{runner.addresses[0][1]}/", {})
        await client.aclose()
        await runner.cleanup()

    asyncio.run(run())
    assert len(ports) == 1


def test_the_http_library_is_loaded_when_a_client_is_made_and_not_in_the_first_call() -> None:
    code = (
        "import sys; from rewardflow.services.http.http_client import HttpClient; assert 'aiohttp' not in sys.modules; "
    )
    code += "HttpClient(); assert 'aiohttp' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_question_without_a_body_is_answered_too() -> None:
    async def run() -> Any:
        async with ScriptedServer(lambda _: {}, look=lambda request: {"path": request.path}) as server:
            client = HttpClient()
            try:
                return await client.get_json(f"{server.url}/v1/models")
            finally:
                await client.aclose()

    assert asyncio.run(run()) == {"path": "/v1/models"}


def test_a_request_goes_through_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await read_request(reader))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    async def run() -> Any:
        async with raw_server(proxy) as url:
            monkeypatch.setenv("http_proxy", url.replace("http://", "http://me:s%40crt@"))
            monkeypatch.delenv("no_proxy", raising=False)
            return await post("http://judge.invalid:8000/v1/x")

    assert asyncio.run(run()) == {}
    assert heads[0].startswith(b"POST http://judge.invalid:8000/v1/x HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic " + base64.b64encode(b"me:s@crt") in heads[0]


# -- compressed bodies --


def compressed(body: bytes, encoding: str = "gzip", status: int = 200) -> web.Response:
    packed = gzip.compress(body) if encoding == "gzip" else zlib.compress(body)
    headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
    return web.Response(status=status, body=packed, headers=headers)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_compressed_answer_is_read(encoding: str) -> None:
    assert answer_of(lambda: compressed(b'{"a": 1}', encoding)) == {"a": 1}


def test_the_client_asks_for_answers_without_compression() -> None:
    async def run() -> str:
        async with ScriptedServer(lambda request: {}) as server:
            await post(server.url)
            return server.requests[0].headers["Accept-Encoding"]

    assert asyncio.run(run()) == "identity"


def test_64_gzip_bombs_at_once_are_bounded_failures_and_leave_the_loop_free() -> None:
    bomb = gzip.compress(bytes(64 * 2**20), compresslevel=1)

    async def run() -> None:
        def answer(request: Any) -> web.Response:
            return web.Response(body=bomb, headers={"Content-Encoding": "gzip"})

        async with ScriptedServer(answer) as server:
            client = HttpClient(max_body_bytes=2**20)
            outcomes = await asyncio.gather(*(fails(client, server.url) for _ in range(64)))
            await client.aclose()
        assert set(outcomes) == {
            f"the answer of {server.url} must be at most 1048576 bytes after decompression, and is longer"
        }

    async def fails(client: HttpClient, url: str) -> str:
        with pytest.raises(Unparsable) as caught:
            await client.post_json(url, {})
        return str(caught.value)

    asyncio.run(run())


def test_an_unknown_encoding_is_named() -> None:
    with pytest.raises(Unparsable, match="encoding 'br' is not one of gzip, deflate and identity"):
        answer_of(lambda: web.Response(body=b"...", headers={"Content-Encoding": "br"}))


def test_a_compressed_error_is_shown_decompressed() -> None:
    with pytest.raises(ServiceError, match="answered 500: out of memory"):
        answer_of(lambda: compressed(b"out of memory", status=500))


# -- keys --


@pytest.mark.parametrize("status", [400, 401, 429, 500, 200])
def test_a_key_that_the_server_echoes_is_in_no_message_and_no_trace(status: int) -> None:
    async def run() -> CallError:
        def echo(request: Any) -> web.Response:
            return web.Response(status=status, text=f"bad headers: {dict(request.headers)} {KEY}!")

        async with ScriptedServer(echo) as server:
            with pytest.raises(CallError) as caught:
                await post(server.url, Authorization=f"Bearer {KEY}")
        return caught.value

    error = asyncio.run(run())
    shown = "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error))
    assert KEY not in shown
    assert "[redacted]" in shown


def test_a_broken_exchange_does_not_show_the_headers_that_were_sent() -> None:
    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"nonsense " + (await read_request(reader))[:4000] + b"\r\n\r\n")

    async def run() -> CallError:
        async with raw_server(rude) as url:
            with pytest.raises(CallError) as caught:
                await post(f"{url}/?key={KEY}", Authorization=f"Bearer {KEY}")
        return caught.value

    error = asyncio.run(run())
    assert error.__context__ is None, "the client's own exceptions hold the request's headers"
    assert KEY not in "".join(traceback.format_exception(error)) + repr(error)


def test_the_request_is_json_with_the_given_headers() -> None:
    async def run() -> tuple[Any, Any]:
        async with ScriptedServer(lambda request: {}) as server:
            await post(f"{server.url}/v1/x", Authorization="Bearer k")
            return server.requests[0].body, server.requests[0].headers

    body, headers = asyncio.run(run())
    assert json.dumps(body) == '{"q": 1}'
    assert (headers["Authorization"], headers["Content-Type"]) == ("Bearer k", "application/json")
