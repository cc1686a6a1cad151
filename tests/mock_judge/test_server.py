"""The judge over HTTP: answers, faults, limits, switches."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import math
import random
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import orjson
import pytest

from rewardflow.mock_judge import FAULTS, MockJudge, MockJudgeSettings
from rewardflow.mock_judge.verdict import Score, score_probabilities
from rewardflow.reward.limits.rate_limit_headers import read_limits, read_retry_after_s

SCHEMA = {
    "type": "object",
    "properties": {
        "reason": {"type": "string"},
        "correctness": {"type": "integer", "enum": list(range(11))},
        "calm": {"type": "number", "minimum": 0, "maximum": 1},
    },
}


def a_request(prompt: str = "Judge this.", **more: Any) -> dict[str, Any]:
    return {
        "model": "m",
        "messages": [{"role": "system", "content": "You judge."}, {"role": "user", "content": prompt}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "v", "schema": SCHEMA}},
        **more,
    }


class Client:
    """As much of a client as these tests need."""

    def __init__(self, judge: MockJudge, session: aiohttp.ClientSession) -> None:
        self.judge = judge
        self.session = session

    async def send(self, request: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        async with self.session.post(f"{self.judge.base_url}/chat/completions", json=request) as response:
            headers = {name.lower(): value for name, value in response.headers.items()}
            return response.status, headers, await response.read()

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        status, _, body = await self.send(request)
        assert status == 200, body
        answer: dict[str, Any] = orjson.loads(body)
        return answer

    async def text(self, request: dict[str, Any]) -> str:
        content: str = (await self.ask(request))["choices"][0]["message"]["content"]
        return content

    async def get(self, path: str) -> Any:
        async with self.session.get(f"{self.judge.url}{path}") as response:
            return orjson.loads(await response.read())

    async def post(self, path: str, headers: dict[str, str] | None = None) -> int:
        async with self.session.post(f"{self.judge.url}{path}", headers=headers) as response:
            return response.status


def with_judge(test: Callable[[Client], Awaitable[None]], **settings: Any) -> MockJudge:
    """Run a test against a judge; the judge, for its counts."""
    judge = MockJudge(MockJudgeSettings(**settings))

    async def main() -> None:
        timeout = aiohttp.ClientTimeout(total=30)
        async with judge, aiohttp.ClientSession(timeout=timeout) as session:
            await test(Client(judge, session))

    asyncio.run(main())
    told = judge.statistics()
    assert told.calls == sum(told.outcomes.values())
    assert told.in_flight == 0
    return judge


# ---- answers ------------------------------------------------------------------------------------------------------


def test_an_answer_is_an_openai_completion_with_usage() -> None:
    async def test(client: Client) -> None:
        answer = await client.ask(a_request("What about this?"))
        choice = answer["choices"][0]
        assert (answer["object"], choice["message"]["role"], choice["finish_reason"]) == (
            "chat.completion",
            "assistant",
            "stop",
        )
        assert orjson.loads(choice["message"]["content"]) == client.judge.verdict_of("What about this?", SCHEMA)
        usage = answer["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert min(usage.values()) > 0

    with_judge(test)


def test_a_judge_that_compares_scores_by_the_reference_and_refuses_a_prompt_without_one() -> None:
    async def test(client: Client) -> None:
        prompt = "<<<REFERENCE 1>>>\n407\n<<<END REFERENCE 1>>>\n<<<ANSWER 1>>>\n417\n<<<END ANSWER 1>>>"
        verdict = orjson.loads(await client.text(a_request(prompt)))
        assert (verdict["correctness"], verdict["calm"]) == (7, 0.67)
        status, _, body = await client.send(a_request("How good is it?"))
        assert status == 400
        assert b"no REFERENCE" in body

    with_judge(test, scores="graded")


def test_a_renamed_model_answers_under_its_new_name_and_is_listed_under_the_first() -> None:
    async def test(client: Client) -> None:
        answers = [await client.ask(a_request(f"prompt {number}")) for number in range(4)]
        assert [answer["model"] for answer in answers] == ["m-1", "m-1", "m-2", "m-2"]
        async with client.session.get(f"{client.judge.base_url}/models") as response:
            assert [one["id"] for one in (await response.json())["data"]] == ["m-1"]

    with_judge(test, model="m-1,2=m-2")


def test_every_score_equals_what_the_judge_says_it_gives() -> None:
    async def test(client: Client) -> None:
        for number in range(50):
            found = orjson.loads(await client.text(a_request(f"prompt {number}")))
            assert found["correctness"] == client.judge.score_of(f"prompt {number}", "correctness", 0, 10, whole=True)
            assert found["calm"] == client.judge.score_of(f"prompt {number}", "calm")

    with_judge(test, seed=3)


def test_without_a_schema_the_answer_has_the_form_that_the_prompt_asks_for() -> None:
    async def test(client: Client) -> None:
        prompt = 'Reply {"wit": <0 to 5>, "reason": <why>}'
        asked = await client.text({"messages": [{"role": "user", "content": prompt}]})
        assert orjson.loads(asked)["wit"] == client.judge.score_of(prompt, "wit", 0, 5, whole=True)
        plain = orjson.loads(await client.text({"messages": [{"role": "user", "content": "How good?"}]}))
        assert plain["score"] == client.judge.score_of("How good?")
        assert isinstance(plain["reason"], str)

    with_judge(test)


def test_log_probs_spell_the_answer_and_spread_over_scores() -> None:
    async def test(client: Client) -> None:
        choice = (await client.ask(a_request(logprobs=True, top_logprobs=4)))["choices"][0]
        tokens = choice["logprobs"]["content"]
        assert "".join(token["token"] for token in tokens) == choice["message"]["content"]
        score = client.judge.score_of("Judge this.", "correctness", 0, 10, whole=True)
        expected = score_probabilities(Score(score, 0, 10))
        (spread, *_) = [token for token in tokens if len(token["top_logprobs"]) > 1]
        assert spread["token"] == spread["top_logprobs"][0]["token"] == str(score)
        for top in spread["top_logprobs"]:
            assert math.exp(top["logprob"]) == pytest.approx(expected[top["token"]])

    with_judge(test)


def test_log_probs_are_left_out_when_not_asked_for_or_not_given() -> None:
    async def test(client: Client) -> None:
        assert (await client.ask(a_request()))["choices"][0]["logprobs"] is None

    async def test_refusing(client: Client) -> None:
        assert (await client.ask(a_request(logprobs=True)))["choices"][0]["logprobs"] is None

    with_judge(test)
    with_judge(test_refusing, gives_log_probs=False)


def test_an_answer_longer_than_max_tokens_is_cut() -> None:
    async def test(client: Client) -> None:
        answer = await client.ask(a_request(max_tokens=5))
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 5

    with_judge(test)


def test_a_bad_request_is_answered_400_with_the_rule() -> None:
    async def test(client: Client) -> None:
        status, _, body = await client.send({"messages": []})
        assert (status, orjson.loads(body)["error"]["message"]) == (400, "messages must hold a user message, got none")

    async def test_no_schema(client: Client) -> None:
        status, _, body = await client.send(a_request())
        assert status == 400
        assert b"response_format" in body

    assert with_judge(test).statistics().outcomes == {"bad_request": 1}
    with_judge(test_no_schema, takes_schema=False)


def test_a_prompt_of_many_megabytes_is_read() -> None:
    async def test(client: Client) -> None:
        body = io.BytesIO(orjson.dumps(a_request("x" * 5_000_000)))
        async with client.session.post(f"{client.judge.base_url}/chat/completions", data=body) as response:
            assert (await response.json())["usage"]["prompt_tokens"] > 1_000_000

    with_judge(test)


# ---- faults -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "status", "retry_after_s"), [("429", 429, None), ("429_retry_after", 429, 3.0), ("500", 500, None)]
)
def test_an_error_is_told_in_json(fault: str, status: int, retry_after_s: float | None) -> None:
    async def test(client: Client) -> None:
        found, headers, body = await client.send(a_request())
        assert (found, read_retry_after_s(headers)) == (status, retry_after_s)
        assert orjson.loads(body)["error"]["message"]

    assert with_judge(test, faults={fault: 1.0}, retry_after_s=2.5).statistics().outcomes == {fault: 1}


def test_a_scaled_retry_after_is_shorter_than_a_second() -> None:
    async def test(client: Client) -> None:
        _, headers, _ = await client.send(a_request())
        assert headers["retry-after"] == "0.025"

    with_judge(test, faults={"429_retry_after": 1.0}, retry_after_s=2.5, scale=0.01)


def test_a_502_is_a_page_in_html() -> None:
    async def test(client: Client) -> None:
        status, headers, body = await client.send(a_request())
        assert (status, headers["content-type"].partition(";")[0]) == (502, "text/html")
        assert b"Bad Gateway" in body

    with_judge(test, faults={"502": 1.0})


def test_a_hang_lasts_until_the_client_goes_away_or_its_time_is_up() -> None:
    async def test_leaving(client: Client) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.send(a_request())

    async def test_waiting(client: Client) -> None:
        with pytest.raises(aiohttp.ClientConnectionError):
            await client.send(a_request())

    assert with_judge(test_leaving, faults={"hang": 1.0}).statistics().outcomes == {"hang": 1}
    with_judge(test_waiting, faults={"hang": 1.0}, hang_s=1, scale=0.01)


def test_a_reset_breaks_the_connection() -> None:
    async def test(client: Client) -> None:
        with pytest.raises(aiohttp.ClientOSError) as caught:
            await client.send(a_request())
        assert caught.value.errno == errno.ECONNRESET

    with_judge(test, faults={"reset": 1.0})


def test_a_slow_body_is_right_in_the_end() -> None:
    async def test(client: Client) -> None:
        async with client.session.post(f"{client.judge.base_url}/chat/completions", json=a_request()) as response:
            pieces = [piece async for piece in response.content.iter_any()]
        assert len(pieces) > 3
        text = orjson.loads(b"".join(pieces))["choices"][0]["message"]["content"]
        assert orjson.loads(text) == client.judge.verdict_of("Judge this.", SCHEMA)

    with_judge(test, faults={"slow_body": 1.0}, slow_body_s=10, scale=0.02)


def test_a_truncated_body_ends_before_its_length() -> None:
    async def test(client: Client) -> None:
        with pytest.raises(aiohttp.ClientPayloadError):
            await client.send(a_request())

    with_judge(test, faults={"truncated": 1.0})


def test_a_malformed_body_is_no_json() -> None:
    async def test(client: Client) -> None:
        status, _, body = await client.send(a_request())
        assert status == 200
        with pytest.raises(orjson.JSONDecodeError):
            orjson.loads(body)

    with_judge(test, faults={"malformed_body": 1.0})


def test_a_malformed_verdict_is_cut_off_inside_a_good_response() -> None:
    async def test(client: Client) -> None:
        with pytest.raises(orjson.JSONDecodeError):
            orjson.loads(await client.text(a_request()))

    with_judge(test, faults={"malformed_verdict": 1.0})


def test_a_wrong_schema_has_none_of_the_fields() -> None:
    async def test(client: Client) -> None:
        assert SCHEMA["properties"].keys().isdisjoint(orjson.loads(await client.text(a_request())))

    with_judge(test, faults={"wrong_schema": 1.0})


def test_nan_scores_are_nan_as_python_writes_it() -> None:
    async def test(client: Client) -> None:
        found = json.loads(await client.text(a_request()))
        assert math.isnan(found["correctness"])
        assert math.isnan(found["calm"])

    with_judge(test, faults={"nan": 1.0})


def test_scores_out_of_range_lie_on_either_side() -> None:
    async def test(client: Client) -> None:
        found = [json.loads(await client.text(a_request(f"prompt {number}")))["correctness"] for number in range(40)]
        assert min(found) < 0
        assert max(found) > 10
        assert not any(0 <= score <= 10 for score in found)

    with_judge(test, faults={"out_of_range": 1.0})


def test_a_huge_body_is_huge_and_does_not_say_so_beforehand() -> None:
    async def test(client: Client) -> None:
        _, headers, body = await client.send(a_request())
        assert "content-length" not in headers
        assert 3_000_000 < len(body) < 3_002_000
        text = orjson.loads(body)["choices"][0]["message"]["content"]
        assert orjson.loads(text) == client.judge.verdict_of("Judge this.", SCHEMA)

    with_judge(test, faults={"huge_body": 1.0}, huge_body_bytes=3_000_000)


def test_a_client_that_leaves_a_huge_body_holds_nothing_up() -> None:
    async def test(client: Client) -> None:
        async with client.session.post(f"{client.judge.base_url}/chat/completions", json=a_request()) as response:
            await response.content.read(1000)
            response.close()

    assert with_judge(test, faults={"huge_body": 1.0}).statistics().outcomes == {"huge_body": 1}


# ---- nothing depends on the order ---------------------------------------------------------------------------------


def test_what_calls_get_does_not_depend_on_the_order_in_which_they_come() -> None:
    """Several requests, each sent several times, in two orders and many at once."""
    quick = [fault for fault in FAULTS if fault not in ("hang", "slow_body", "huge_body")]
    settings = {"faults": dict.fromkeys(quick, 0.05), "latency": "uniform:0,5", "scale": 0.001, "seed": 11}

    async def outcome(client: Client, request: dict[str, Any]) -> tuple[Any, ...]:
        try:
            status, _, body = await client.send(request)
        except aiohttp.ClientError as error:
            return (type(error).__name__,)
        return status, body.partition(b'"model"')[2] or body  # what stands before it has the time of day

    def run(shuffle_seed: int) -> tuple[dict[int, list[tuple[Any, ...]]], MockJudge]:
        found: dict[int, list[tuple[Any, ...]]] = {number: [] for number in range(40)}

        async def test(client: Client) -> None:
            async def keep_sending(number: int) -> None:
                for _ in range(4):
                    found[number].append(await outcome(client, a_request(f"prompt {number}")))

            numbers = list(found)
            random.Random(shuffle_seed).shuffle(numbers)
            async with asyncio.TaskGroup() as tasks:
                for number in numbers:
                    tasks.create_task(keep_sending(number))

        return found, with_judge(test, **settings)

    (first, first_judge), (second, second_judge) = run(1), run(2)
    assert first == second
    assert first_judge.statistics().outcomes == second_judge.statistics().outcomes
    assert len(first_judge.statistics().outcomes) > 5


# ---- limits, switches, counts -------------------------------------------------------------------------------------


def test_what_passes_a_rate_is_refused_with_the_time_to_wait_and_not_held_against_its_request() -> None:
    async def test(client: Client) -> None:
        answers = [await client.send(a_request()) for _ in range(5)]
        assert [status for status, _, _ in answers] == [200, 200, 429, 429, 429]
        refused = answers[2][1]
        assert 20 < (read_retry_after_s(refused) or 0) <= 30
        assert read_limits(refused).rpm == 2
        assert client.judge.times_admitted(a_request()) == 2

    assert with_judge(test, rpm=2).statistics().outcomes == {"answered": 2, "limited_requests": 3}


def test_tokens_a_minute_are_held_back_by_max_tokens_and_settled_by_use() -> None:
    async def test(client: Client) -> None:
        statuses = [(await client.send(a_request(max_tokens=900)))[0] for _ in range(4)]
        assert statuses == [200] * 4

    async def test_refused(client: Client) -> None:
        assert [(await client.send(a_request("x" * 3000)))[0] for _ in range(2)] == [200, 429]

    with_judge(test, tpm=1200)
    assert with_judge(test_refused, tpm=1200).statistics().outcomes == {"answered": 1, "limited_tokens": 1}


def test_calls_above_the_concurrency_limit_are_refused_and_a_client_that_left_frees_its_place() -> None:
    async def test(client: Client) -> None:
        async def leave_soon() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await client.send(a_request())

        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(leave_soon())
            await asyncio.sleep(0.03)
            assert [(await client.send(a_request()))[0] for _ in range(2)] == [429, 429]
        await leave_soon()

    told = with_judge(test, max_concurrency=3, faults={"hang": 1.0}).statistics()
    assert told.outcomes == {"hang": 4, "limited_concurrency": 2}
    assert told.peak_in_flight == 4


def test_a_scaled_minute_lets_a_rate_be_seen_in_a_moment() -> None:
    async def test(client: Client) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while not client.judge.statistics().outcomes.get("limited_requests"):
            await client.send(a_request())
        elapsed_s = loop.time() - began_s
        answered = client.judge.statistics().outcomes["answered"]
        assert answered <= 1 + 1 + 60 * elapsed_s / 6

    with_judge(test, rpm=60, scale=0.1, burst_s=0.6)


def test_no_page_of_another_site_can_give_orders_through_a_browser() -> None:
    async def test(client: Client) -> None:
        own = client.judge.url.removeprefix("http://")
        port = own.rpartition(":")[2]
        refused = (
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": f"http://evil.example:{port}"},
            {"Host": f"evil.example:{port}"},  # its name points here now
            {"Host": f"evil.example:{port}", "Origin": f"http://evil.example:{port}"},
        )
        allowed = ({}, {"Origin": client.judge.url}, {"Host": f"localhost:{port}"}, {"Host": f"[::1]:{port}"})
        for headers in refused:
            assert await client.post("/admin/down", headers) == 403
        assert (await client.get("/stats"))["is_down"] is False
        for headers in allowed:
            assert await client.post("/admin/up", headers) == 200

    with_judge(test)


def test_while_it_is_down_everything_is_503_also_what_was_being_answered() -> None:
    async def test(client: Client) -> None:
        async with asyncio.TaskGroup() as tasks:
            answering = tasks.create_task(client.send(a_request()))
            await asyncio.sleep(0.02)
            assert await client.post("/admin/down") == 200
            assert (await client.send(a_request()))[0] == 503
            assert (await client.get("/stats"))["is_down"] is True
            assert (await client.get("/health"))["error"]["message"] == "the service is down"
        assert answering.result()[0] == 503
        assert await client.post("/admin/up") == 200
        assert (await client.send(a_request()))[0] == 200
        assert await client.get("/health") == {"status": "ok"}

    assert with_judge(test, latency="constant:0.2").statistics().outcomes == {"down": 2, "answered": 1}


def test_stats_tell_the_counts_and_each_request_if_asked() -> None:
    async def test(client: Client) -> None:
        for prompt in ("a", "a", "b"):
            await client.send(a_request(prompt))
        told = await client.get("/stats")
        assert told == client.judge.statistics().to_json()
        assert (told["calls"], told["outcomes"], told["admitted_again"]) == (3, {"answered": 3}, {"0": 2, "1": 1})
        assert sorted((await client.get("/stats?requests"))["requests"].values()) == [1, 2]

    with_judge(test)


def test_models_are_listed_and_other_paths_are_not_there() -> None:
    async def test(client: Client) -> None:
        assert [model["id"] for model in (await client.get("/v1/models"))["data"]] == ["my-judge"]
        assert await client.post("/v1/embeddings") == 404
        assert await client.post("/stats") == 405

    with_judge(test, model="my-judge")
