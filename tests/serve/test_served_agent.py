"""The Python client over HTTP: the interface of `RewardAgent`, and a server that goes away and comes back."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest
from served import CALLS, GATE, judge, rollouts, served

import rewardflow as rf
from rewardflow.errors import InvalidInput, SharedAgentGone
from rewardflow.observe.redact import hide_secrets
from rewardflow.reward.agent import RewardAgent
from rewardflow.serve import connect
from rewardflow.serve.agent_server import AgentServer
from rewardflow.serve.served_agent import HttpTransport
from rewardflow.serve.settings import ServeSettings


def test_groups_come_back_with_the_very_records_that_were_submitted() -> None:
    async def main() -> None:
        async with served() as asker, connect(asker.url, run="a") as agent:
            sent = rollouts(24, size=4, ground_truth={"answer": [1, 2]}, messages=[{"role": "user", "content": "hi"}])
            groups = await agent.submit(sent).all()
            assert all(one is other for one, other in zip(sent, (r for g in groups for r in g.rollouts), strict=True))
            assert [reward.value for g in groups for reward in g.rewards] == [float(len(r.response)) for r in sent]
            assert agent.statistics().verdicts.scored == 24
            statistics = await agent.host_statistics()
            assert statistics.agent.verdicts.scored == 24
            assert [client.run for client in statistics.clients] == ["a"]

    asyncio.run(main())


def test_a_failed_verdict_keeps_its_kind_and_its_reason() -> None:
    async def main() -> None:
        async with served(max_attempts=1) as asker, connect(asker.url, run="a") as agent:
            reward = await agent.score(rf.Rollout(group_id="g", response="bad"))
            assert (reward.value, reward.kind) == (None, "user_error")
            assert "cannot be judged" in (reward.error or "")
            assert "in judge" in (reward.traceback or "")

    asyncio.run(main())


def test_a_token_that_others_can_read_on_the_way_is_warned_of_and_never_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    HttpTransport("http://job:garden-of-tokens-1@serve-a.example:8078")
    HttpTransport("http://serve-b.example:8078", token="garden-of-tokens-2")
    HttpTransport("http://127.0.0.1:8078", token="garden-of-tokens-2")
    HttpTransport("http://serve-c.example:8078")
    warned = [record.getMessage().split(" over ")[0] for record in caplog.records]
    assert warned == ["a key goes to serve-a.example", "a key goes to serve-b.example"]
    assert hide_secrets("garden-of-tokens-1") == "[redacted]"


def test_what_json_cannot_hold_is_refused_by_its_name_before_it_is_sent() -> None:
    async def main() -> None:
        async with served() as asker, connect(asker.url, run="a") as agent:
            with pytest.raises(InvalidInput, match=r"extra_info\['odd'\] of index 0"):
                agent.submit(rf.Rollout(group_id="g", response="", extra_info={"odd": object()}))

    asyncio.run(main())


def test_a_server_that_comes_back_gets_what_has_no_verdict_and_pays_for_nothing_twice(tmp_path: Path) -> None:
    async def main() -> None:
        CALLS.clear()
        GATE.update(hold=asyncio.Event(), started=asyncio.Event())
        make = lambda _: RewardAgent(judge, serves_runs=True, journal=tmp_path / "v.db")  # noqa: E731
        first = AgentServer(make, ServeSettings(port=0))
        async with first:
            agent = connect(first.url, run="a")
            await agent.__aenter__()
            paid = await agent.submit(rollouts(8)).all()
            ticket = agent.submit([rf.Rollout(group_id="late", response="hold")])
            await GATE["started"].wait()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_exit(agent.__aexit__)
            GATE["hold"].set()
            calls = CALLS.copy()
            async with AgentServer(make, ServeSettings(port=first.port)):
                assert [group.rewards[0].value for group in await ticket.all()] == [4.0]
                again = await agent.submit([group.rollouts[0] for group in paid]).all()
                assert [group.rewards for group in again] != []
                assert all(group.rewards[0].cached for group in again)
                assert agent.statistics().reconnects >= 1
                assert calls["hold"] <= CALLS["hold"] <= calls["hold"] + 1
                assert all(CALLS[text] == count for text, count in calls.items() if text != "hold")
                await stack.aclose()

    asyncio.run(main())


def test_a_server_that_stays_away_is_given_up_and_a_wrong_address_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(SharedAgentGone, match="must answer within"):
            async with connect("http://127.0.0.1:9", run="a", give_up_s=0.2):
                pass
        with pytest.raises(InvalidInput, match="must begin with http"):
            connect("127.0.0.1:9", run="a")

    asyncio.run(main())


def test_a_wrong_token_is_refused_without_showing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_TOKEN", "c" * 20)
    monkeypatch.setenv("REWARDFLOW_TOKEN", "wrong-token-of-the-client")

    async def main() -> None:
        async with served(serve={"token_env": "ALL_TOKEN"}) as asker:
            with pytest.raises(InvalidInput, match=r"\(401\)") as refused:
                async with connect(asker.url, run="a"):
                    pass
            assert "wrong-token" not in str(refused.value)

    asyncio.run(main())


def test_a_run_directory_gets_the_calls_of_the_run(tmp_path: Path) -> None:
    async def main() -> None:
        async with served() as asker, connect(asker.url, run="a", run_dir=tmp_path / "run") as agent:
            await agent.submit(rollouts(6, size=3)).all()

    asyncio.run(main())
    assert any(path.is_file() for path in (tmp_path / "run").rglob("*"))


def test_rollouts_that_make_a_message_too_long_are_sent_in_parts_and_one_that_never_fits_has_failed() -> None:
    async def main() -> None:
        async with served(serve={"max_body_mb": 1}) as asker, connect(asker.url, run="a") as agent:
            sent = [rf.Rollout(group_id=str(i), response="x", ground_truth=["y" * 3000]) for i in range(600)]
            huge = rf.Rollout(group_id="huge", response="x", ground_truth=["y" * 2_000_000])
            groups = await agent.submit([*sent, huge]).all()
            kinds = {group.group_id: group.rewards[0].kind for group in groups}
            assert kinds.pop("huge") == "user_error"
            assert set(kinds.values()) == {None}
            assert CALLS == {"x": 600}
            (reason,) = (group.rewards[0].error for group in groups if group.group_id == "huge")
            assert "413" in str(reason)

    asyncio.run(main())


@pytest.mark.parametrize("odd", [2**70, "\ud800"], ids=["a number above 64 bits", "half of a character"])
def test_an_extra_that_json_cannot_hold_is_told_in_words_and_holds_up_nobody(odd: object) -> None:
    async def compute_score(solution_str: str) -> dict[str, object]:
        return {"score": 1.0, "odd": odd if solution_str == "odd" else 0}

    async def main() -> None:
        async with served(compute_score) as asker, connect(asker.url, run="a") as agent:
            sent = [*rollouts(20), rf.Rollout(group_id="odd", response="odd")]
            groups = await agent.submit(sent).all()
            assert [reward.value for group in groups for reward in group.rewards] == [1.0] * 21
            status, answer = await asker.post(
                "/v1/score", {"rollouts": [{"group_id": "again", "response": "odd"}], "run": "b"}
            )
            assert (status, answer["verdicts"][0]["value"]) == (200, 1.0)
            assert agent.statistics().reconnects == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"ground_truth": 2**70}, "ground_truth"),
        ({"ground_truth": "\ud800"}, "ground_truth"),
        ({"response": "\ud800"}, "response"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"extra_info": {"seed": 2**70}}, r"extra_info\['seed'\]"),
        ({"extra_info": {"\ud800": 1}}, "extra_info.*"),
    ],
)
def test_a_plain_value_that_json_cannot_hold_is_refused_by_its_name_too(fields: dict[str, object], name: str) -> None:
    async def main() -> None:
        async with served() as asker, connect(asker.url, run="a") as agent:
            with pytest.raises(InvalidInput, match=f"got {name} of index 0"):
                agent.submit(rf.Rollout(**{"group_id": "g", "response": "x", **fields}))
            assert (await agent.score(rf.Rollout(group_id="g", response="\u00e9\u4f60"))).value == 2.0

    asyncio.run(main())


def test_a_clients_rollouts_count_in_the_jobs_queue_and_are_all_judged() -> None:
    async def main() -> None:
        async with served(serve={"max_waiting": 2}) as asker, connect(asker.url, run="a") as agent:
            tickets = [agent.submit(rf.Rollout(group_id="h0", response="hold 0"))]
            await GATE["started"].wait()
            for number in range(1, 6):
                tickets.append(agent.submit(rf.Rollout(group_id=f"h{number}", response=f"hold {number}")))
                await asyncio.sleep(0.05)
            assert (await asker.get("/v1/status?run=a"))[1]["waiting"] == 2
            GATE["hold"].set()
            groups = [group for ticket in tickets for group in await ticket.all()]
            assert [group.rewards[0].value for group in groups] == [6.0] * 6

    asyncio.run(main())


def test_a_client_may_choose_the_share_of_a_run_that_requests_without_a_session_began() -> None:
    async def main() -> None:
        async with served() as asker:
            await asker.post("/v1/score", {"rollouts": [{"group_id": "g", "response": "x"}], "run": "a"})
            async with connect(asker.url, run="a", share=2) as agent:
                assert (await agent.score(rf.Rollout(group_id="h", response="xy"))).value == 2.0

    asyncio.run(main())
