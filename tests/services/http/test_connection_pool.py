"""No answer reaches a request that it does not belong to, as far as HTTP/1.1 allows to tell.

The servers here run on real sockets and in real time, because unasked bytes on a connection are the subject.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from scripted_server import raw_server, read_request

import rewardflow as rf
from rewardflow.errors import ServiceError
from rewardflow.services import JsonScorer
from rewardflow.services.http import connection_pool
from rewardflow.services.http.connection_pool import WatchSettings, origin_of
from rewardflow.services.http.http_client import HttpClient

REUSING = WatchSettings(num_first=0)  # reuses connections from the first request on


@dataclass
class EchoServer:
    """Answers each request with its own number, and some of them twice.

    With `extra`, the second answer follows after so many seconds; with `is_late`, just before the next answer on the
    same connection; `repeat` sends it at once.
    """

    extra: float | None = None
    delay_s: float = 0.0
    from_request: int = 0  # the first request whose answer is sent twice
    is_late: bool = False
    may_answer: asyncio.Event | None = None  # requests wait for it
    id_of: Callable[[str], str] | None = None  # makes the id to send back from the id of the request
    num_connections: int = 0
    num_requests: int = 0
    sent: list[tuple[asyncio.StreamWriter, bytes]] = field(default_factory=list)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        previous = b""
        async with asyncio.TaskGroup() as tasks:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    head, _, body = (await read_request(reader)).partition(b"\r\n\r\n")
                    await asyncio.sleep(self.delay_s)
                    if self.may_answer is not None:
                        await self.may_answer.wait()
                    response = self._response(head.decode(), json.loads(body)["response"])
                    if self.is_late and previous:
                        writer.write(previous)
                        await until(writer.is_closing)  # the answer to this request comes later
                    previous = response
                    writer.write(response)
                    self.sent.append((writer, response))
                    if self.extra is not None and self.num_requests > self.from_request:
                        tasks.create_task(self._send_later(writer, response, self.extra))

    def repeat(self) -> None:
        writer, response = self.sent[-1]
        writer.write(response)

    def _response(self, head: str, number: Any) -> bytes:
        self.num_requests += 1
        body = json.dumps({"score": float(number)}).encode()
        sent_id = re.search(r"X-Request-Id: (\S+)", head)
        header = "" if self.id_of is None or sent_id is None else f"X-Request-Id: {self.id_of(sent_id[1])}\r\n"
        response = f"HTTP/1.1 200 OK\r\n{header}Content-Length: {len(body)}\r\n\r\n".encode() + body
        return response * 2 if self.extra == 0 and self.num_requests > self.from_request else response

    async def _send_later(self, writer: asyncio.StreamWriter, response: bytes, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if seconds and not writer.is_closing():
            writer.write(response)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (a server of sockets has no event to wait for)
            await asyncio.sleep(0.001)


def rollouts(count: int) -> list[rf.Rollout]:
    return [rf.Rollout(group_id=str(i), index=0, group_size=1, prompt="", response=str(i)) for i in range(count)]


def scores_of(server: EchoServer, *, max_concurrency: int, count: int = 60, **settings: Any) -> list[rf.Reward]:
    async def run() -> list[rf.Reward]:
        async with (
            raw_server(server.handle) as url,
            rf.RewardAgent(
                JsonScorer(urls=url, **settings), max_concurrency=max_concurrency, max_attempts=4, backoff_s=0.01
            ) as agent,
        ):
            groups = await agent.submit(rollouts(count)).all()
        return [reward for group in sorted(groups, key=lambda group: int(group.group_id)) for reward in group.rewards]

    return asyncio.run(run())


def strangers(rewards: Sequence[rf.Reward]) -> list[int]:
    """The rollouts that got a score of somebody else."""
    return [i for i, reward in enumerate(rewards) if reward.is_scored and reward.value != float(i)]


@pytest.mark.parametrize(("max_concurrency", "delay_s"), [(1, 0.0), (4, 0.01), (16, 0.0), (16, 0.02)])
@pytest.mark.parametrize("extra", [0.05, 0.004, 0.0])
def test_no_rollout_gets_the_score_of_another_from_a_gateway_that_answers_twice(
    max_concurrency: int, delay_s: float, extra: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a busy machine may send the second answer late, but not by so much
    monkeypatch.setattr(connection_pool, "WatchSettings", lambda: WatchSettings(first_s=20.0))
    rewards = scores_of(EchoServer(extra=extra, delay_s=delay_s), max_concurrency=max_concurrency)
    assert strangers(rewards) == []
    assert all(reward.is_scored for reward in rewards)


def post(url: str, client: HttpClient, number: int) -> Awaitable[Any]:
    return client.post_json(url, {"response": number})


def run_with(
    server: EchoServer, body: Callable[[str, HttpClient], Awaitable[Any]], watch: WatchSettings | None = REUSING
) -> Any:
    async def run() -> Any:
        client = HttpClient(watch=watch)
        async with raw_server(server.handle) as url:
            try:
                return await body(url, client)
            finally:
                await client.aclose()

    return asyncio.run(run())


async def pool_of(url: str, client: HttpClient) -> Any:
    return (await client._pools.of_running_loop()).pool_of(url)


def test_after_bytes_on_an_idle_connection_each_request_has_a_connection_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = EchoServer()

    async def body(url: str, client: HttpClient) -> None:
        await post(url, client, 0)
        await post(url, client, 1)
        assert server.num_connections == 1
        server.repeat()
        pool = await pool_of(url, client)
        await until(lambda: not pool.keeps_alive)
        for number in range(2, 5):
            assert await post(url, client, number) == {"score": number}
        assert caplog.text.count("sent bytes on a connection on which no request was waiting") == 1
        assert url in caplog.text

    with caplog.at_level(logging.WARNING):
        run_with(server, body)
    assert server.num_connections == 4


def test_unread_bytes_of_which_the_loop_does_not_know_yet_keep_a_connection_from_being_used() -> None:
    server = EchoServer()

    async def body(url: str, client: HttpClient) -> None:
        await post(url, client, 1)
        (connections,) = (await pool_of(url, client)).session.connector._conns.values()
        connection = connections[0][0]
        assert connection.is_connected()
        connection.transport.pause_reading()  # as a loop that is too busy to read
        server.repeat()
        await until(lambda: not connection.is_connected())
        assert await post(url, client, 2) == {"score": 2}

    run_with(server, body)
    assert server.num_connections == 2


def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    server = EchoServer()

    async def body(url: str, client: HttpClient) -> bool:
        await post(url, client, 1)
        (connections,) = (await pool_of(url, client)).session.connector._conns.values()
        connection = connections[0][0]
        server.sent[-1][0].close()
        await until(lambda: not connection.is_connected())
        assert await post(url, client, 2) == {"score": 2}
        return bool((await pool_of(url, client)).keeps_alive)

    assert run_with(server, body), "the end of a connection is no reason to distrust the server"


def test_what_remains_is_a_late_answer_that_comes_while_the_next_request_waits() -> None:
    server = EchoServer()

    async def body(url: str, client: HttpClient) -> None:
        await post(url, client, 1)
        server.is_late = True
        assert await post(url, client, 2) == {"score": 1}, "HTTP/1.1 cannot tell; if it could, the docs would be wrong"
        server.sent[-1][0].write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")  # the answer that is still due
        pool = await pool_of(url, client)
        await until(lambda: not pool.keeps_alive)
        assert await post(url, client, 3) == {"score": 3}

    run_with(server, body)


def test_answers_in_flight_on_used_connections_are_not_believed_after_the_first_surplus_byte() -> None:
    server = EchoServer()

    async def body(url: str, client: HttpClient) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(2):
                tasks.create_task(post(url, client, number))
        assert server.num_connections == 2
        server.may_answer = asyncio.Event()
        waiting = asyncio.ensure_future(post(url, client, 2))
        pool = await pool_of(url, client)
        await until(lambda: len(pool.session.connector._acquired) == 1)
        busy = next(iter(pool.session.connector._acquired)).transport.get_extra_info("sockname")
        for writer, response in server.sent:
            if writer.get_extra_info("peername") != busy:
                writer.write(response)
        await until(lambda: not pool.keeps_alive)
        server.may_answer.set()
        with pytest.raises(ServiceError, match="may be the answer to another request"):
            await waiting

    run_with(server, body)


def test_two_responses_at_once_on_a_used_connection_are_not_believed() -> None:
    server = EchoServer(extra=0.0, from_request=1)

    async def body(url: str, client: HttpClient) -> None:
        assert await post(url, client, 1) == {"score": 1}
        with pytest.raises(ServiceError, match="may be the answer to another request"):
            await post(url, client, 2)
        assert await post(url, client, 3) == {"score": 3}

    run_with(server, body)


@pytest.mark.parametrize("keep_alive", [True, False])
def test_connections_are_used_again_unless_keep_alive_is_off(keep_alive: bool) -> None:
    server = EchoServer()

    async def run() -> None:
        client = HttpClient(keep_alive=keep_alive, watch=REUSING)
        async with raw_server(server.handle) as url:
            for number in range(3):
                assert await post(url, client, number) == {"score": number}
            await client.aclose()

    asyncio.run(run())
    assert server.num_connections == (1 if keep_alive else 3)


def test_the_first_connections_carry_one_request_each_until_they_stayed_silent() -> None:
    server = EchoServer()
    watch = WatchSettings(num_first=2, first_s=0.01)

    async def body(url: str, client: HttpClient) -> None:
        pool = await pool_of(url, client)
        for number in range(2):
            await post(url, client, number)
        await until(lambda: pool.max_requests > 1)
        for number in range(3):
            await post(url, client, number)

    run_with(server, body, watch)
    assert server.num_connections == 3


def test_a_connection_carries_a_bounded_number_of_requests_and_is_watched_after_the_last() -> None:
    server = EchoServer()

    async def body(url: str, client: HttpClient) -> None:
        for number in range(3):
            await post(url, client, number)
        assert server.num_connections == 1
        pool = await pool_of(url, client)
        assert pool.keeps_alive
        server.repeat()
        await until(lambda: not pool.keeps_alive)
        assert await post(url, client, 3) == {"score": 3}
        assert server.num_connections == 2

    run_with(server, body, WatchSettings(num_first=0, max_requests=3))


def test_connections_that_are_busy_together_are_not_all_used_for_equally_long() -> None:
    # If all were, a gateway that begins to answer twice while they are busy would be believed until all are watched.
    server = EchoServer(delay_s=0.01)

    async def body(url: str, client: HttpClient) -> None:
        for _ in range(12):
            await asyncio.gather(*(post(url, client, number) for number in range(8)))

    run_with(server, body, WatchSettings(num_first=0, max_requests=64))
    assert 8 < server.num_connections < 32


def test_at_most_so_many_connections_are_watched_at_a_time() -> None:
    server = EchoServer()

    async def body(url: str, client: HttpClient) -> int:
        await asyncio.gather(*(post(url, client, number) for number in range(10)))
        return len((await pool_of(url, client))._watched)

    assert run_with(server, body, WatchSettings(max_watched=3, first_s=60.0)) == 3


# -- ids --


def test_an_answer_with_the_id_of_another_request_fails_and_ends_the_reuse_of_connections() -> None:
    seen: list[str] = []

    def previous(request_id: str) -> str:
        seen.append(request_id)
        return seen[max(0, len(seen) - 2)]

    server = EchoServer(id_of=previous)

    async def body(url: str, client: HttpClient) -> bool:
        assert await post(url, client, 1) == {"score": 1}
        with pytest.raises(ServiceError, match="the id of another request"):
            await post(url, client, 2)
        return bool((await pool_of(url, client)).keeps_alive)

    assert not run_with(server, body)


@pytest.mark.parametrize("id_of", [lambda sent: sent, lambda sent: "req_7f1", lambda sent: sent[:12]])
def test_ids_that_are_right_or_of_the_server_itself_are_fine(id_of: Callable[[str], str]) -> None:
    async def body(url: str, client: HttpClient) -> list[Any]:
        return [await post(url, client, number) for number in range(3)]

    assert run_with(EchoServer(id_of=id_of), body) == [{"score": 0}, {"score": 1}, {"score": 2}]


def test_a_late_answer_with_an_id_is_never_a_score_even_where_http_cannot_tell() -> None:
    server = EchoServer(id_of=lambda sent: sent)

    async def body(url: str, client: HttpClient) -> None:
        await post(url, client, 1)
        server.is_late = True
        with pytest.raises(ServiceError, match="the id of another request"):
            await post(url, client, 2)

    run_with(server, body)


def test_the_origin_has_no_path_and_no_password() -> None:
    assert origin_of("https://me:secret@host:8443/v1?key=1") == "https://host:8443"
