"""A judge as an object: its lifetime, what it knows of its answers, what it counts."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import orjson
import pytest

from rewardflow.errors import InvalidInput
from rewardflow.mock_judge import MockJudge, MockJudgeSettings

SCHEMA = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "correctness": {"type": "integer", "minimum": 0, "maximum": 10}},
}


def a_request(prompt: str = "Judge this.") -> dict[str, Any]:
    return {
        "model": "m",
        "messages": [{"role": "user", "content": prompt}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "v", "schema": SCHEMA}},
    }


def ask(judge: MockJudge, request: dict[str, Any]) -> dict[str, Any]:
    """From blocking code, as a user of another library would."""
    call = urllib.request.Request(f"{judge.base_url}/chat/completions", data=orjson.dumps(request))
    with urllib.request.urlopen(call, timeout=30) as response:
        content: dict[str, Any] = orjson.loads(orjson.loads(response.read())["choices"][0]["message"]["content"])
        return content


def test_a_judge_in_a_thread_of_its_own_answers_blocking_code() -> None:
    with MockJudge() as judge:
        found = ask(judge, a_request("What about this?"))
        assert found == judge.verdict_of("What about this?", SCHEMA)
        assert found["correctness"] == judge.score_of("What about this?", "correctness", 0, 10, whole=True)
    told = judge.statistics()
    assert (told.calls, told.in_flight, told.outcomes) == (1, 0, {"answered": 1})
    assert told.prompt_tokens > 0
    assert told.completion_tokens > 0


def test_a_judge_in_the_callers_loop_answers_too() -> None:
    async def main() -> None:
        async with MockJudge() as judge:
            found = await asyncio.to_thread(ask, judge, a_request())
            assert found == judge.verdict_of("Judge this.", SCHEMA)

    asyncio.run(main())


def test_a_judge_leaves_nothing_behind_and_can_be_started_again() -> None:
    judge = MockJudge()
    for _ in range(2):
        with judge:
            port = int(judge.url.rpartition(":")[2])
            ask(judge, a_request())
            assert judge.statistics().calls == 1
        assert not any(thread.name == "mock-judge" for thread in threading.enumerate())
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def test_a_judge_outside_its_block_has_no_address_but_knows_its_scores() -> None:
    judge = MockJudge()
    with pytest.raises(InvalidInput, match="only inside its `with` block"):
        _ = judge.base_url
    assert 0 <= judge.score_of("a prompt") <= 1


def test_a_judge_is_not_entered_twice_at_a_time() -> None:
    with MockJudge() as judge:
        with pytest.raises(InvalidInput, match="once at a time"), judge:
            pass
        ask(judge, a_request())


def test_a_port_that_is_taken_is_refused_by_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        judge = MockJudge(MockJudgeSettings(port=port))
        with pytest.raises(InvalidInput, match=f"must be free to listen on, got 127.0.0.1:{port}"), judge:
            pass


def test_it_closes_soon_while_calls_hang() -> None:
    body = orjson.dumps(a_request())
    with MockJudge(MockJudgeSettings(faults={"hang": 1.0})) as judge:
        connections = [http.client.HTTPConnection("127.0.0.1", int(judge.url.rpartition(":")[2])) for _ in range(20)]
        for connection in connections:
            connection.request("POST", "/v1/chat/completions", body)
        while judge.statistics().in_flight < 20:
            time.sleep(0.001)
        began_s = time.monotonic()
    assert time.monotonic() - began_s < 5  # a hang lasts ten minutes; a second is usual
    for connection in connections:
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            connection.getresponse()
        connection.close()
    assert judge.statistics().outcomes == {"hang": 20}


def test_it_is_switched_down_and_up_from_python() -> None:
    with MockJudge() as judge:
        judge.go_down()
        with pytest.raises(urllib.error.HTTPError, match="503") as caught:
            ask(judge, a_request())
        caught.value.close()
        assert judge.is_down
        judge.come_up()
        ask(judge, a_request())
    assert judge.statistics().outcomes == {"down": 1, "answered": 1}


def test_plans_can_be_known_beforehand_and_a_retry_has_its_own() -> None:
    judge = MockJudge(MockJudgeSettings(faults={"500": 0.5}))
    request = next(
        request
        for request in (a_request(f"prompt {number}") for number in range(100))
        if judge.plan_of(request).fault == "500" and judge.plan_of(request, 1).fault is None
    )
    with judge:
        with pytest.raises(urllib.error.HTTPError, match="500") as caught:
            ask(judge, request)
        caught.value.close()
        assert ask(judge, request) == judge.verdict_of(request["messages"][0]["content"], SCHEMA)
        assert judge.times_admitted(request) == 2
    assert judge.statistics().admitted_again == {0: 1, 1: 1}
