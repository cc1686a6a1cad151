"""What a caller sees of the server over real HTTP: tokens, walls, bounded bodies, and the order of its end."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from served import CALLS, GATE, judge, rollouts, served

import rewardflow as rf
from rewardflow.errors import InvalidInput
from rewardflow.reward.agent import RewardAgent
from rewardflow.serve import connect
from rewardflow.serve.agent_server import AgentServer
from rewardflow.serve.settings import ServeSettings

TOKENS = {"A_TOKEN": "a" * 20, "B_TOKEN": "b" * 20, "ALL_TOKEN": "c" * 20}
JOBS = {"jobs": {"a": {"token_env": "A_TOKEN"}, "b": {"token_env": "B_TOKEN"}}, "token_env": "ALL_TOKEN"}


@pytest.fixture(autouse=True)
def tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, token in TOKENS.items():
        monkeypatch.setenv(name, token)


def one(response: str = "abc", **fields: object) -> dict[str, object]:
    return {"rollouts": [{"group_id": "g", "response": response, **fields}]}


def test_without_a_known_token_nothing_is_judged() -> None:
    async def main() -> None:
        async with served(serve=JOBS) as asker:
            assert (await asker.post("/v1/score", one()))[0] == 401
            assert (await asker.post("/v1/score", one(), token="x" * 20))[0] == 401
            assert (await asker.get("/v1/statistics"))[0] == 401
            assert not CALLS
            assert (await asker.post("/v1/score", one(), token="a" * 20))[0] == 200

    asyncio.run(main())


def test_a_job_asks_under_its_own_name_only_and_does_not_see_the_others() -> None:
    async def main() -> None:
        async with served(serve=JOBS) as asker:
            status, answer = await asker.post("/v1/score", {**one(), "run": "b"}, token="a" * 20)
            assert status == 403
            assert "the token is that of job 'a'" in answer["error"]["message"]
            assert (await asker.get("/v1/statistics", token="a" * 20))[0] == 403
            assert (await asker.get("/v1/statistics", token="c" * 20))[0] == 200

    asyncio.run(main())


def test_the_password_of_an_address_is_a_token_for_clients_that_cannot_set_headers() -> None:
    async def main() -> None:
        async with served(serve=JOBS) as asker:
            asker.url = asker.url.replace("http://", f"http://job:{'a' * 20}@")
            assert (await asker.post("/v1/score", one()))[0] == 200

    asyncio.run(main())


def test_two_jobs_may_use_the_same_names_and_get_their_own_verdicts() -> None:
    async def main() -> None:
        async with served(serve=JOBS) as asker:
            _, mine = await asker.post("/v1/score", one("abc"), token="a" * 20)
            _, theirs = await asker.post("/v1/score", one("abcde"), token="b" * 20)
            assert [mine["verdicts"][0]["value"], theirs["verdicts"][0]["value"]] == [3.0, 5.0]

    asyncio.run(main())


def test_a_server_beyond_this_machine_must_ask_for_a_token() -> None:
    with pytest.raises(InvalidInput, match="must ask for a token"):
        ServeSettings(host="0.0.0.0")
    assert ServeSettings(host="0.0.0.0", token_env="ALL_TOKEN").host == "0.0.0.0"
    assert ServeSettings(host="::1").host == "::1"


def test_a_page_of_another_site_cannot_use_a_server_without_tokens() -> None:
    async def main() -> None:
        async with served() as asker:
            assert (await asker.post("/v1/score", one(), Origin="http://evil.example"))[0] == 403
            assert (await asker.post("/v1/score", one(), Host="evil.example"))[0] == 403
            assert (await asker.post("/v1/score", one(), Host="localhost:1"))[0] == 200

    asyncio.run(main())


def test_a_body_above_the_limit_is_refused() -> None:
    async def main() -> None:
        async with served(serve={"max_body_mb": 0.01}) as asker:
            assert (await asker.post("/v1/score", one("x" * 20_000)))[0] == 413
            assert not CALLS

    asyncio.run(main())


def test_a_caller_that_goes_in_the_middle_of_its_request_is_no_defect(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with served() as asker:
            host, _, port = asker.url.removeprefix("http://").partition(":")
            _, writer = await asyncio.open_connection(host, int(port))
            head = f"POST /v1/score HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 1000\r\n\r\nabc"
            writer.write(head.encode())
            await writer.drain()
            assert (await asker.get("/healthz"))[0] == 200  # by then the server reads the first request, too
            writer.transport.abort()
            await writer.wait_closed()
            assert (await asker.post("/v1/score", one()))[0] == 200

    with caplog.at_level("ERROR"):
        asyncio.run(main())
    assert not caplog.records


def test_a_full_queue_is_429_with_a_time_to_come_back_and_room_again_when_verdicts_are_in() -> None:
    async def main() -> None:
        async with served(serve={"max_waiting": 2}) as asker:
            held = {"rollouts": [{"group_id": str(i), "response": f"hold{i}"} for i in range(2)], "wait_s": 0}
            assert (await asker.post("/v1/score", held))[1]["verdicts"] == []
            status, answer, headers = await asker.ask("POST", "/v1/score", one())
            assert (status, answer["error"]["type"]) == (429, "queue_full")
            assert int(headers["Retry-After"]) >= 1
            GATE["hold"].set()
            assert len((await asker.post("/v1/score", {**held, "wait_s": 20}))[1]["verdicts"]) == 2
            assert (await asker.post("/v1/score", one()))[0] == 200

    asyncio.run(main())


def test_closing_answers_what_waits_and_keeps_what_was_paid(tmp_path: Path) -> None:
    async def main() -> None:
        journal = tmp_path / "verdicts.db"
        async with served(journal=journal) as asker:
            assert (await asker.post("/v1/score", one()))[1]["verdicts"][0]["value"] == 3.0
            waiting = asyncio.create_task(asker.post("/v1/score", one("hold", index=0)))
            await GATE["started"].wait()
        status, answer = await waiting
        assert (status, answer["verdicts"][0]["status"], answer["verdicts"][0]["kind"]) == (200, "failed", "cancelled")
        async with served(journal=journal) as asker:
            verdict = (await asker.post("/v1/score", one()))[1]["verdicts"][0]
            assert (verdict["value"], verdict["cached"]) == (3.0, True)
            assert not CALLS

    asyncio.run(main())


def test_a_port_in_use_and_a_broken_reward_are_found_before_anybody_connects() -> None:
    async def enter(port: int, reward: object) -> None:
        async with AgentServer(lambda _: RewardAgent(reward, serves_runs=True), ServeSettings(port=port)):  # type: ignore[arg-type]
            pass

    with socket.create_server(("127.0.0.1", 0)) as busy, pytest.raises(InvalidInput, match="must be free to listen on"):
        asyncio.run(enter(busy.getsockname()[1], judge))
    with pytest.raises(rf.RewardflowError):
        asyncio.run(enter(0, "no/such/file.py:judge"))


def test_the_client_of_a_job_has_the_jobs_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWARDFLOW_TOKEN", "a" * 20)

    async def main() -> None:
        jobs = {"jobs": {"a": {"token_env": "A_TOKEN", "share": 3}}, "token_env": "ALL_TOKEN"}
        async with served(serve=jobs) as asker, connect(asker.url, run="a", share=9) as agent:
            groups = await agent.submit(rollouts(4)).all()
            assert len(groups) == 4
            status, statistics = await asker.get("/v1/statistics", token="c" * 20)
            assert (status, statistics["clients"][0]["share"]) == (200, 3)

    asyncio.run(main())
