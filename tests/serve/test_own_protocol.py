"""`/v1/score` and the verbs of clients, as plain HTTP: one, a batch, a group that grows, and a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from served import CALLS, GATE, served

from rewardflow.clock import run
from rewardflow.serve.own_protocol import ScoreBody, score_events
from rewardflow.serve.settings import ServedJob
from rewardflow.types import Reward, Rollout


def body(*rollouts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"rollouts": list(rollouts), **more}


def test_verdicts_that_are_not_final_in_time_are_listed_and_the_same_request_gets_them() -> None:
    async def main() -> None:
        async with served() as asker:
            done, held = {"group_id": "g", "response": "ab"}, {"group_id": "h", "response": "hold"}
            await asker.post("/v1/score", body(done, wait_s=60))
            asked = body(done, held, wait_s=0.05)
            _, first = await asker.post("/v1/score", asked)
            assert [one["group_id"] for one in first["pending"]] == ["h"]
            GATE["hold"].set()
            _, second = await asker.post("/v1/score", {**asked, "wait_s": 30})
            assert [(one["group_id"], one["value"]) for one in second["verdicts"]] == [("g", 2.0), ("h", 4.0)]
            assert second["pending"] == []
            assert CALLS == {"ab": 1, "hold": 1}

    asyncio.run(main())


def test_a_stream_gives_each_verdict_as_it_is_ready_and_says_when_it_ends() -> None:
    async def main() -> None:
        async with served() as asker:
            asked = body({"group_id": "g", "response": "hold"}, {"group_id": "h", "response": "abc"})
            streaming = asyncio.create_task(asker.post("/v1/score", asked, Accept="text/event-stream"))
            await GATE["started"].wait()
            GATE["hold"].set()
            status, text = await streaming
            events = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
            assert (status, events) == (200, ["verdict", "verdict", "end"])

    asyncio.run(main())


class _Watched(asyncio.Future[Reward]):
    """A verdict to come that counts who waits for it."""

    num_asked = 0

    def add_done_callback(self, *args: Any, **kwargs: Any) -> None:
        self.num_asked += 1
        super().add_done_callback(*args, **kwargs)


class _Requests:
    """Gives each rollout a verdict that the test sets."""

    def __init__(self) -> None:
        self.futures: list[_Watched] = []

    async def ask(self, job: ServedJob, rollouts: Sequence[Rollout], **_: Any) -> list[_Watched]:
        self.futures = [_Watched() for _ in rollouts]
        return self.futures


def test_a_stream_looks_at_each_verdict_once_however_many_are_still_out() -> None:
    async def main() -> None:
        requests: Any = _Requests()
        asked = ScoreBody([{"group_id": str(i), "response": "a"} for i in range(50)])
        events = score_events(asked, ServedJob(run="run"), requests)
        first = asyncio.create_task(anext(events))
        await asyncio.sleep(0)
        for i, future in enumerate(requests.futures):
            future.set_result(Reward(value=float(i)))
            event = await (first if i == 0 else anext(events))
            assert f'"value":{float(i)}'.encode() in event
        assert [event async for event in events] == [b"event: end\ndata: {}\n\n"]
        assert {future.num_asked for future in requests.futures} == {1}

    run(main())


def test_a_stream_without_news_shows_that_it_is_alive_and_one_that_is_left_asks_for_nothing_more() -> None:
    async def main() -> None:
        requests: Any = _Requests()
        events = score_events(ScoreBody([{"group_id": "g", "response": "a"}]), ServedJob(run="run"), requests)
        assert await anext(events) == b": waiting\n\n"
        await events.aclose()  # type: ignore[attr-defined]
        requests.futures[0].set_result(Reward(value=1.0))

    run(main())


def test_a_failed_verdict_has_no_value_and_shows_where_the_rewards_code_failed() -> None:
    async def main() -> None:
        async with served(max_attempts=1) as asker:
            _, answer = await asker.post("/v1/score", body({"group_id": "g", "response": "bad"}))
            (verdict,) = answer["verdicts"]
            assert (verdict["status"], verdict["value"], verdict["kind"]) == ("failed", None, "user_error")
            assert "in judge" in verdict["traceback"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        (b"{", "must be JSON"),
        ([], "must be an object"),
        ({}, "must have 'rollouts'"),
        (body(), "rollouts must be 1 to 10,000"),
        (body({"group_id": "g"}), "must have 'response'"),
        (body({"group_id": "g", "response": 3}), "response of a rollout must be str"),
        (body({"group_id": "g", "response": "", "reponse": ""}), "takes group_id, response"),
        (body({"group_id": "g", "response": "", "index": 2}), "index must lie in"),
        (body({"group_id": "g", "response": "", "step": False}), "step must be a whole number"),
        (body({"group_id": "g", "response": "", "group_size": 2**40}), "group_size must be at most"),
        (body({"group_id": "g", "response": "", "messages": ["hi"]}), "messages must be a list of objects"),
        (body({"group_id": "g", "response": "", "messages": False}), "messages must be a list of objects"),
        (body({"group_id": "g", "response": ""}, wait_s="1"), "wait_s must be float"),
        (b"[" * 900 + b"]" * 900, "nested at most 200 deep"),
        (body({"group_id": "g", "response": "", "ground_truth": 2**64}), "must fit 64 bits"),
        (b'{"rollouts": [' + b"9" * 300 + b"]}", "must fit 64 bits"),
    ],
)
def test_a_mistake_is_400_with_the_rule_and_costs_nothing(asked: Any, rule: str) -> None:
    async def main() -> None:
        async with served() as asker:
            status, answer = await asker.post("/v1/score", asked)
            assert status == 400
            assert rule in answer["error"]["message"]
            assert not CALLS

    asyncio.run(main())


def test_a_rollout_that_is_none_has_failed_and_the_others_of_its_message_are_judged() -> None:
    async def main() -> None:
        async with served() as asker:
            secret = "s" * 64
            await asker.post("/v1/hello", {"secret": secret, "run": "r"})
            odd = [[i, [f"g{i}", "abc", 0, 1, "", messages]] for i, messages in enumerate((5, True, [], 1.5), 1)]
            submit = {"op": "Submit", "about": {"ticket": 1, "rollouts": odd}}
            assert (await asker.post("/v1/post", {"secret": secret, "ops": [submit]}))[0] == 200
            verdicts: dict[int, list[Any]] = {}
            confirmed = 0
            while len(verdicts) < len(odd):
                _, delivery = await asker.post("/v1/take", {"secret": secret, "confirmed": confirmed})
                confirmed = delivery["number"]
                verdicts |= {serial: packed[:2] for serial, packed, _ in delivery["verdicts"]}
            failed = [None, "user_error"]
            assert verdicts == {1: failed, 2: failed, 3: [3.0, None], 4: failed}

    asyncio.run(main())


def test_a_client_that_the_server_does_not_know_must_say_hello() -> None:
    async def main() -> None:
        async with served() as asker:
            assert (await asker.post("/v1/take", {"secret": "s" * 32, "confirmed": 0}))[0] == 410
            assert (await asker.post("/v1/post", {"secret": "s" * 32, "ops": []}))[0] == 410
            assert (await asker.post("/v1/hello", {"secret": "short", "run": "a"}))[0] == 400
            assert (await asker.post("/v1/hello", {"secret": "s" * 32, "run": "a"}))[0] == 200
            wrong = {"secret": "s" * 32, "ops": [{"op": "Explode", "about": {}}]}
            assert (await asker.post("/v1/post", wrong))[0] == 400

    asyncio.run(main())
