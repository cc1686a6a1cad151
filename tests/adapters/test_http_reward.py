"""verl's reward function over the server: a number, an error that is no number, and a server that is busy or away."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from served import CALLS, GATE, served

from rewardflow.adapters import http_reward
from rewardflow.adapters.http_reward import compute_score


class Array:
    """As numpy gives references."""

    def tolist(self) -> list[str]:
        return ["4", "four"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_reward, "_PAUSE_S", 0.01)


def test_workers_get_the_servers_verdict_and_equal_questions_cost_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with served() as asker:
            monkeypatch.setenv("REWARDFLOW_URL", asker.url)
            ask = lambda: compute_score("gsm8k", "abc", Array(), {"question": "2+2?"})  # noqa: E731
            assert await asyncio.gather(*(asyncio.to_thread(ask) for _ in range(6))) == [3.0] * 6
            assert CALLS == {"abc": 1}

    asyncio.run(main())


def test_a_failure_raises_with_the_reason_and_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with served(max_attempts=1) as asker:
            monkeypatch.setenv("REWARDFLOW_URL", asker.url)
            with pytest.raises(RuntimeError, match=r"answered 500.*cannot be judged"):
                await asyncio.to_thread(compute_score, "x", "bad", None)

    asyncio.run(main())


def test_a_proxy_for_the_internet_is_not_asked_and_does_not_get_the_token() -> None:
    """In a process of its own: urllib reads the environment once."""

    async def main() -> None:
        async with served() as asker:
            call = f"import runpy; print(runpy.run_path({http_reward.__file__!r})['compute_score']('x', 'abc', None))"
            nobody = {name: "http://127.0.0.1:9" for name in ("http_proxy", "HTTP_PROXY", "all_proxy")}
            env = {**os.environ, **nobody, "no_proxy": "", "NO_PROXY": "", "REWARDFLOW_URL": asker.url}
            run = subprocess.run
            asked = await asyncio.to_thread(
                run, [sys.executable, "-c", call], env=env, capture_output=True, text=True, timeout=60
            )
            assert asked.stdout.strip() == "3.0", asked.stderr

    asyncio.run(main())


def test_a_late_verdict_is_waited_for_while_the_server_is_alive_and_asking_again_joins_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The function has no timeout of its own: `limits.verdict_timeout_s` of the server decides."""

    async def main() -> None:
        async with served() as asker:
            monkeypatch.setenv("REWARDFLOW_URL", asker.url)
            for name, seconds in (("_SILENT_S", 0.5), ("_PAUSE_S", 0.01), ("_TRY_FOR_S", 0.1)):
                monkeypatch.setattr(http_reward, name, seconds)
            asking = asyncio.create_task(asyncio.to_thread(compute_score, "x", "hold", None))
            await GATE["started"].wait()
            await asyncio.sleep(1.5)  # real time: two tries have heard nothing
            GATE["hold"].set()
            assert await asking == 4.0
            assert CALLS == {"hold": 1}

    asyncio.run(main())


def test_a_host_that_takes_the_connection_and_says_nothing_is_an_error_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("REWARDFLOW_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        for name, seconds in (("_SILENT_S", 0.05), ("_PAUSE_S", 0.01), ("_TRY_FOR_S", 0.1)):
            monkeypatch.setattr(http_reward, name, seconds)
        with pytest.raises(RuntimeError, match="no answer from REWARDFLOW_URL"):
            compute_score("x", "y", None)


def test_a_server_that_ends_in_the_middle_of_its_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n0.", b"HTTP/1.", b"HTTP/1.1 200 OK\r\n\r\n0.5"]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().splitlines() if line.startswith(b"content-length"))
        await reader.readexactly(int(length.split(b":")[1]))
        writer.write(answers.pop(0))
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            monkeypatch.setenv("REWARDFLOW_URL", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            assert await asyncio.to_thread(compute_score, "x", "abc", None) == 0.5
            assert not answers

    asyncio.run(main())


def test_references_may_hold_arrays_inside_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class Array:
        def tolist(self) -> list[int]:
            return [1, 2]

    async def main() -> None:
        async with served() as asker:
            monkeypatch.setenv("REWARDFLOW_URL", asker.url)
            assert await asyncio.to_thread(compute_score, "x", "yes", {"tests": Array()}) == 3.0
            with pytest.raises(TypeError, match="plain values and arrays, got object"):
                compute_score("x", "yes", {"tests": object()})

    asyncio.run(main())


def test_a_full_queue_is_asked_again_and_a_server_that_stays_away_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with served(serve={"max_waiting": 1}) as asker:
            monkeypatch.setenv("REWARDFLOW_URL", asker.url)
            first = asyncio.create_task(asyncio.to_thread(compute_score, "x", "hold", None))
            await GATE["started"].wait()
            second = asyncio.create_task(asyncio.to_thread(compute_score, "x", "abc", None))
            await asyncio.sleep(0.05)
            GATE["hold"].set()
            assert [await first, await second] == [4.0, 3.0]
        monkeypatch.setattr(http_reward, "_TRY_FOR_S", -1.0)
        with pytest.raises(RuntimeError, match="no answer from REWARDFLOW_URL"):
            await asyncio.to_thread(compute_score, "x", "abc", None)

    asyncio.run(main())


def test_the_token_and_the_run_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "a" * 20)
    monkeypatch.setenv("REWARDFLOW_RUN", "a")
    jobs: dict[str, Any] = {"jobs": {"a": {"token_env": "A_TOKEN"}}}

    async def main() -> None:
        async with served(serve=jobs) as asker:
            monkeypatch.setenv("REWARDFLOW_URL", asker.url)
            with pytest.raises(RuntimeError, match="answered 401"):
                await asyncio.to_thread(compute_score, "x", "abc", None)
            monkeypatch.setenv("REWARDFLOW_TOKEN", "a" * 20)
            assert await asyncio.to_thread(compute_score, "x", "abc", None) == 3.0

    asyncio.run(main())


def test_a_token_that_others_can_read_on_its_way_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_reward, "_TRY_FOR_S", 0.05)
    monkeypatch.setenv("REWARDFLOW_TOKEN", "a" * 20)
    with caplog.at_level(logging.WARNING):
        for url in ("http://127.0.0.1:9", "https://reward.invalid", "http://reward.invalid", "http://reward.invalid"):
            monkeypatch.setenv("REWARDFLOW_URL", url)
            with pytest.raises(RuntimeError, match="no answer"):
                compute_score("x", "abc", None)
    assert [record.getMessage() for record in caplog.records] == [
        "a token goes to reward.invalid over plain http://, where others on the way can read it: use https://"
    ]


def test_an_answer_that_names_another_address_is_an_error_and_does_not_take_the_token_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("REWARDFLOW_TOKEN", "a" * 20)
    with listening() as (other, asked_there), listening(location=other) as (url, asked_first):
        monkeypatch.setenv("REWARDFLOW_URL", url)
        with pytest.raises(RuntimeError, match="answered 302"):
            compute_score("x", "abc", None)
    assert len(asked_first) == 1
    assert asked_there == []


@contextlib.contextmanager
def listening(location: str | None = None) -> Iterator[tuple[str, list[str | None]]]:
    """A server that sends everybody to another one, or gives a number; yields what it was given as a token."""
    tokens: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            tokens.append(self.headers["Authorization"])
            self.send_response(200 if location is None else 302)
            if location is not None:
                self.send_header("Location", location)
            self.send_header("Content-Length", "3")
            self.end_headers()
            self.wfile.write(b"1.0")

        do_POST = do_GET

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", tokens
        finally:
            server.shutdown()
            thread.join()
