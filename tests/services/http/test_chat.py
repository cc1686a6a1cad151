"""Asking chat-completions endpoints: addresses, keys, schemas, odd answers, and what they used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from scripted_server import Request, ScriptedServer, completion

from rewardflow import clock
from rewardflow.errors import CallError, InvalidInput, RateLimited, ServiceError, Unparsable
from rewardflow.reward.code.current_call import Call, enter_call
from rewardflow.services.http.chat import ChatClient, chat_url, route_url
from rewardflow.services.http.chat_answer import ChatAnswer
from rewardflow.services.prices import Prices

KEY = "correct-horse-battery-9"
MESSAGES = ({"role": "user", "content": "Hello"},)
SCHEMA = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


def ask(
    answer: Callable[[Request], Any], *, times: int = 1, schema: Mapping[str, Any] | None = None, **settings: Any
) -> tuple[list[ChatAnswer], list[Request]]:
    """The answers of a client to as many questions, and what the server was sent."""

    async def run() -> tuple[list[ChatAnswer], list[Request]]:
        async with ScriptedServer(answer) as server:
            client = ChatClient(base_urls=[server.url], model="m", **settings)
            try:
                return [await client.complete(MESSAGES, schema=schema) for _ in range(times)], server.requests
            finally:
                await client.aclose()

    return asyncio.run(run())


def used(run: Callable[[], Any]) -> Call:
    """What a call reported, whatever became of it."""
    call = Call(rollouts=())
    enter_call(call)
    try:
        run()
    except CallError:
        pass
    finally:
        enter_call(None)
    return call


def test_an_answer_carries_its_text_and_counts() -> None:
    answers, requests = ask(lambda request: completion("Hi"), sampling={"temperature": 0.5, "top_k": 3})
    assert answers == [ChatAnswer("Hi", None, 100, 20, "stop", model="scripted")]
    assert requests[0].path == "/v1/chat/completions"
    assert requests[0].body == {"model": "m", "messages": list(MESSAGES), "temperature": 0.5, "top_k": 3}


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("http://h:8000", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/v1", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/v1/", "http://h:8000/v1/chat/completions"),
        ("https://openrouter.ai/api/v1", "https://openrouter.ai/api/v1/chat/completions"),
        ("https://h/v1beta/openai/", "https://h/v1beta/openai/chat/completions"),
        ("https://h/v1/chat/completions", "https://h/v1/chat/completions"),
        (
            "https://h/openai/deployments/d?api-version=1",
            "https://h/openai/deployments/d/chat/completions?api-version=1",
        ),
    ],
)
def test_an_address_without_a_path_gets_v1_and_one_with_a_path_is_taken_as_it_is(base_url: str, url: str) -> None:
    assert chat_url(base_url) == url


def test_the_endpoint_of_the_call_is_asked_and_the_first_one_outside_of_a_call() -> None:
    async def run() -> list[int]:
        async with ScriptedServer(lambda _: completion("a")) as one, ScriptedServer(lambda _: completion("b")) as two:
            client = ChatClient(base_urls=[one.url, two.url], model="m")
            assert client.endpoints == (one.url, two.url)
            await client.complete(MESSAGES)
            for endpoint in (two.url, two.url, one.url, "somebody else's"):
                enter_call(Call(rollouts=(), endpoint=endpoint))
                await client.complete(MESSAGES)
            enter_call(None)
            await client.aclose()
            return [len(one.requests), len(two.requests)]

    assert asyncio.run(run()) == [3, 2]


# -- keys --


def test_the_key_is_read_when_a_request_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> list[str]:
        async with ScriptedServer(lambda _: completion("Hi")) as server:
            client = ChatClient(
                base_urls=[server.url], model="m", api_key_env="JUDGE", headers={"api-key": "$OTHER", "X-Title": "t"}
            )
            for key in ("first-key", "second-key"):
                monkeypatch.setenv("JUDGE", key + "\n")
                monkeypatch.setenv("OTHER", "other-key")
                await client.complete(MESSAGES)
                assert key not in repr(vars(client))
            await client.aclose()
            assert server.requests[0].headers["api-key"] == "other-key"
            assert server.requests[0].headers["X-Title"] == "t"
            return [request.headers["Authorization"] for request in server.requests]

    assert asyncio.run(run()) == ["Bearer first-key", "Bearer second-key"]


@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_missing_key_is_named_and_nothing_is_sent(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY_X", raising=False)
    if value is not None:
        monkeypatch.setenv("JUDGE_KEY_X", value)
    client = ChatClient(base_urls=["http://127.0.0.1:9"], model="m", api_key_env="JUDGE_KEY_X")
    with pytest.raises(InvalidInput, match="JUDGE_KEY_X"):
        asyncio.run(client.check())
    with pytest.raises(InvalidInput, match="JUDGE_KEY_X"):
        asyncio.run(client.complete(MESSAGES))


def test_a_key_that_no_header_can_hold_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE", f"{KEY}\r\nX-Injected: 1")
    with pytest.raises(InvalidInput, match="plain characters") as caught:
        asyncio.run(ChatClient(base_urls=["http://h"], model="m", api_key_env="JUDGE").check())
    assert KEY not in str(caught.value)


def test_the_key_of_a_client_over_plain_http_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    completions = SimpleNamespace(create=None)
    for host, key in (("client-a", "garden-of-keys-3"), ("client-b", "EMPTY")):
        chat = SimpleNamespace(completions=completions)
        ChatClient(client=SimpleNamespace(chat=chat, api_key=key, base_url=f"http://{host}.example/v1"), model="m")
    assert [one.getMessage().split(" over ")[0] for one in caplog.records] == ["a key goes to client-a.example"]


def test_an_echoed_key_is_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE", KEY)
    with pytest.raises(ServiceError) as caught:
        ask(lambda request: web.Response(status=401, text=str(request.headers)), api_key_env="JUDGE")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"base_urls": "http://h"}, "list of addresses"),
        ({"base_urls": ["h:8000"]}, "http or https"),
        ({"base_urls": ["ftp://h"]}, "http or https"),
        ({"base_urls": ["http://h", "http://h"]}, "differ"),
        ({}, "exactly one of base_urls and client"),
        ({"client": object()}, "chat.completions.create"),
        ({"base_urls": ["http://h"], "model": ""}, "model must be a name"),
        ({"base_urls": ["http://h"], "sampling": {"n": 2}}, "must not set n"),
        ({"base_urls": ["http://h"], "headers": {"Authorization": "Bearer abc"}}, "variable of the environment"),
    ],
)
def test_settings_that_break_a_rule_are_refused(settings: dict[str, Any], rule: str) -> None:
    with pytest.raises(InvalidInput, match=rule):
        ChatClient(**{"model": "m", **settings})


# -- schemas --


def test_a_schema_is_sent_as_strict_response_format() -> None:
    _, requests = ask(lambda request: completion("{}"), schema=SCHEMA)
    wanted = {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": SCHEMA}}
    assert requests[0].body["response_format"] == wanted


def refuses_schema(request: Request) -> Any:
    if "response_format" in request.body:
        return web.Response(status=400, text="unknown field response_format")
    return completion("{}")


def test_a_server_that_refuses_schemas_is_asked_without_and_remembered() -> None:
    _, requests = ask(refuses_schema, times=3, schema=SCHEMA)
    assert ["response_format" in request.body for request in requests] == [True, False, False, False]


def test_without_the_fallback_the_refusal_is_the_answer() -> None:
    with pytest.raises(ServiceError, match="unknown field"):
        ask(refuses_schema, schema=SCHEMA, schema_fallback=False)


@pytest.mark.parametrize(
    ("told", "with_schema"),
    [
        (["too long", "", ""], [True, True]),  # says nothing of schemas
        (["no Structured output here", "too long", ""], [True, False, True]),  # was not what was wrong
    ],
)
def test_only_a_refusal_that_names_schemas_and_goes_away_without_one_turns_them_off(
    told: list[str], with_schema: list[bool]
) -> None:
    requests: list[Request] = []

    def answer(request: Request) -> Any:
        requests.append(request)
        text = told[len(requests) - 1]
        return web.Response(status=400, text=text) if text else completion("{}")

    async def run() -> None:
        async with ScriptedServer(answer) as server:
            client = ChatClient(base_urls=[server.url], model="m")
            try:
                with pytest.raises(ServiceError, match="too long"):
                    await client.complete(MESSAGES, schema=SCHEMA)
                await client.complete(MESSAGES, schema=SCHEMA)
            finally:
                await client.aclose()

    asyncio.run(run())
    assert ["response_format" in request.body for request in requests] == with_schema


def test_a_server_that_refused_schemas_is_asked_again_after_ten_minutes() -> None:
    ready = refusing_schemas("json_schema is not supported")
    client = ChatClient(client=ready, model="m")

    async def run() -> None:
        for wait_s in (0, 300, 301):
            await asyncio.sleep(wait_s)
            await client.complete(MESSAGES, schema=SCHEMA)

    clock.run(run())
    assert ["response_format" in call for call in ready.calls] == [True, False, False, True, False]


def test_an_answer_says_whether_the_server_took_the_schema() -> None:
    assert ask(lambda request: completion("{}"), schema=SCHEMA)[0][0].is_held_to_schema
    assert not ask(refuses_schema, schema=SCHEMA)[0][0].is_held_to_schema
    assert not ask(lambda request: completion("{}"))[0][0].is_held_to_schema


def test_a_server_known_to_take_schemas_is_not_asked_twice_when_it_refuses() -> None:
    num_requests = 0

    def answer(request: Request) -> Any:
        nonlocal num_requests
        num_requests += 1
        return completion("{}") if num_requests == 1 else web.Response(status=400, text="too long")

    with pytest.raises(ServiceError, match="too long"):
        ask(answer, times=2, schema=SCHEMA)
    assert num_requests == 2


# -- answers --


def test_log_probs_are_asked_for_and_read() -> None:
    told = {
        "content": [{"token": "7", "logprob": -0.5, "top_logprobs": [{"token": "8", "logprob": -1.0, "bytes": [56]}]}]
    }

    async def run() -> tuple[ChatAnswer, Any]:
        def answer(request: Request) -> Any:
            made = completion("7")
            made["choices"][0]["logprobs"] = told
            return made

        async with ScriptedServer(answer) as server:
            client = ChatClient(base_urls=[server.url], model="m")
            found = await client.complete(MESSAGES, logprobs=20)
            await client.aclose()
            return found, server.requests[0].body

    found, body = asyncio.run(run())
    assert (body["logprobs"], body["top_logprobs"]) == (True, 20)
    assert found.tokens is not None
    assert (found.tokens[0].token, found.tokens[0].logprob, dict(found.tokens[0].top)) == ("7", -0.5, {"8": -1.0})


@pytest.mark.parametrize("told", [{"content": None}, {"content": [{}]}, {"content": [None]}, [], "x", {"tokens": []}])
def test_log_probs_of_another_shape_are_none(told: Any) -> None:
    def answer(request: Request) -> Any:
        made = completion("7")
        made["choices"][0]["logprobs"] = told
        return made

    answers, _ = ask(answer)
    assert answers[0].tokens is None


@pytest.mark.parametrize(
    ("answer", "kind", "told"),
    [
        (completion(None), Unparsable, "no text"),
        (completion("  "), Unparsable, "no text"),
        (completion(None, finish_reason="length", reasoning_content="hm"), Unparsable, "raise max_tokens"),
        (completion(None, finish_reason="content_filter"), ServiceError, "content filter"),
        (completion(None, refusal="I can't."), ServiceError, "refused to judge: I can't"),
        ({"choices": []}, Unparsable, "no choice"),
        ({"choices": [{}]}, Unparsable, "no choice"),
        ({"choices": [None]}, Unparsable, "no choice"),
        ({}, Unparsable, "no choice"),
        ([], Unparsable, "not with a chat completion"),
        (7, Unparsable, "not with a chat completion"),
        ({"error": {"code": 502, "message": "upstream"}}, ServiceError, "upstream"),
        ({"error": {"code": 429, "message": "slow down"}}, RateLimited, "slow down"),
        ({"error": "odd"}, ServiceError, "odd"),
    ],
)
def test_an_answer_without_text_says_why(answer: Any, kind: type[CallError], told: str) -> None:
    with pytest.raises(kind, match=told):
        ask(lambda request: web.json_response(answer))


@pytest.mark.parametrize("answer", [completion(None, refusal="no"), completion(None, finish_reason="content_filter")])
def test_a_refusal_is_not_asked_for_again(answer: Any) -> None:
    with pytest.raises(ServiceError) as caught:
        ask(lambda request: answer)
    assert not caught.value.retryable


def test_text_in_parts_is_joined() -> None:
    answers, _ = ask(lambda request: completion([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]))  # type: ignore[arg-type]
    assert answers[0].text == "ab"


# -- usage --


def test_usage_and_cost_are_reported() -> None:
    call = used(lambda: ask(lambda request: completion("Hi", usage=(1000, 100)), prices=Prices(2.0, 10.0)))
    assert (call.tokens, call.cost_usd) == (1100, pytest.approx(0.003))


def test_an_answer_of_no_use_is_paid_for_too() -> None:
    call = used(lambda: ask(lambda request: completion(None, usage=(1000, 100)), prices=Prices(2.0, 10.0)))
    assert (call.tokens, call.cost_usd) == (1100, pytest.approx(0.003))


def test_cached_tokens_have_their_own_price() -> None:
    answer = completion("Hi", usage=(1000, 0))
    answer["usage"]["prompt_tokens_details"] = {"cached_tokens": 500}
    call = used(lambda: ask(lambda request: answer, prices=Prices(2.0, 0.0, 1.0)))
    assert call.cost_usd == pytest.approx(0.0015)
    assert (call.cached_tokens, call.cache_saved_usd) == (500, pytest.approx(0.0005))
    unpriced = used(lambda: ask(lambda request: answer))
    assert (unpriced.cached_tokens, unpriced.cache_saved_usd) == (500, 0.0)


def test_cached_tokens_are_also_read_as_deepseek_tells_them() -> None:
    answer = completion("Hi", usage=(1000, 0))
    answer["usage"] |= {"prompt_cache_hit_tokens": 400, "prompt_cache_miss_tokens": 600}
    assert used(lambda: ask(lambda request: answer, prices=Prices(2.0, 0.0, 1.0))).cached_tokens == 400


def test_a_cost_that_the_service_tells_counts_unless_the_judge_has_prices_of_its_own() -> None:
    answer = completion("Hi", usage=(1000, 100))
    answer["usage"]["cost"] = 0.125
    assert used(lambda: ask(lambda request: answer)).cost_usd == 0.125
    assert used(lambda: ask(lambda request: answer, prices=Prices(2.0, 10.0))).cost_usd == pytest.approx(0.003)


@pytest.mark.parametrize("cost", [None, True, -1, "1", {}])
def test_an_odd_cost_is_none(cost: Any) -> None:
    answer = completion("Hi", usage=(1000, 100))
    answer["usage"]["cost"] = cost
    call = used(lambda: ask(lambda request: answer))
    assert (call.tokens, call.is_cost_known) == (1100, False)


def test_a_price_is_known_if_it_is_given_and_otherwise_what_to_set_is_said() -> None:
    unpriced = ChatClient(base_urls=["http://127.0.0.1:9"], model="m")
    assert "set prices of the judge, or call_cost_usd of the agent" in (unpriced.price_problem() or "")
    priced = ChatClient(base_urls=["http://127.0.0.1:9"], model="m", prices=Prices(0.0, 0.0))
    assert priced.price_problem() is None


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("http://h:8000", "http://h:8000/v1/models"),
        ("https://h/openai/v1/", "https://h/openai/v1/models"),
        ("http://h/v1/chat/completions?a=1", "http://h/v1/models?a=1"),
    ],
)
def test_models_are_listed_beside_the_chat_completions(base_url: str, url: str) -> None:
    assert route_url(base_url, "/models") == url


def test_checking_asks_every_address_what_it_serves_and_sends_no_question(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE", KEY)

    async def run() -> None:
        right = ScriptedServer(lambda _: {}, look=lambda _: {"data": [{"id": "m"}]})
        wrong = ScriptedServer(lambda _: {}, look=lambda _: {"data": [{"id": "a"}, {"id": "b"}]})
        async with right, wrong:
            client = ChatClient(base_urls=[right.url, wrong.url], model="m", api_key_env="JUDGE")
            await client.check()
            await client.aclose()
            assert right.requests == wrong.requests == []
            assert [look.path for look in (*right.looks, *wrong.looks)] == ["/v1/models"] * 2
            assert right.looks[0].headers["Authorization"] == f"Bearer {KEY}"
            assert [one.getMessage() for one in caplog.records] == [
                f"{wrong.url} does not list the model m; it lists a, b"
            ]

    asyncio.run(run())


@pytest.mark.parametrize(
    "usage",
    [
        *(None, {}, [], {"prompt_tokens": None}, {"prompt_tokens": -5}, {"prompt_tokens": "9"}),
        *({"prompt_tokens": 1e30}, {"prompt_tokens": True, "completion_tokens": 5}, {"completion_tokens": 10**15}),
        *({"prompt_tokens": 10**18, "completion_tokens": 3}, {"cost": 1e308}, {"cost": -1}, {"cost": "1"}),
        {"prompt_tokens": 10_000_000, "completion_tokens": 3},  # no request here is that long
    ],
)
def test_missing_or_odd_usage_counts_as_nothing(usage: Any) -> None:
    answer = {**completion("Hi"), "usage": usage}
    call = used(lambda: ask(lambda request: answer, prices=Prices(2.0, 10.0)))
    assert (call.tokens, call.cost_usd) == (0, 0.0)


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"prompt_tokens": 900}, (0, 0)),
        ({"prompt_tokens": 900, "completion_tokens": None}, (0, 0)),
        ({"completion_tokens": 40}, (0, 0)),
        ({"total_tokens": 940}, (0, 0)),
        ({"prompt_tokens": 900, "completion_tokens": "40", "total_tokens": 940}, (0, 0)),
        ({"prompt_tokens": 900, "total_tokens": 800}, (0, 0)),
        ({"prompt_tokens": 900, "completion_tokens": None, "total_tokens": 940}, (900, 40)),
        ({"completion_tokens": 40, "total_tokens": 940}, (900, 40)),
    ],
)
def test_a_missing_count_is_unknown_unless_the_total_tells_it(usage: Any, counts: tuple[int, int]) -> None:
    call = used(lambda: ask(lambda request: {**completion("Hi"), "usage": usage}, prices=Prices(2.0, 10.0)))
    assert call.tokens == sum(counts)
    assert call.cost_usd == pytest.approx(Prices(2.0, 10.0).cost_usd(*counts))
    assert call.is_cost_known is (counts != (0, 0))
    assert call.num_unpriced == (counts == (0, 0))


def test_a_cost_that_the_service_sent_without_counts_is_told_also_where_prices_are_set() -> None:
    answer = {**completion("Hi"), "usage": {"prompt_tokens": 900, "cost": 0.125}}
    assert used(lambda: ask(lambda request: answer, prices=Prices(2.0, 10.0))).cost_usd == 0.125


def test_the_estimate_follows_the_length_of_the_answers() -> None:
    async def run() -> tuple[int, int]:
        async with ScriptedServer(lambda _: completion("Hi", usage=(100, 50))) as server:
            client = ChatClient(base_urls=[server.url], model="m", sampling={"max_tokens": 200})
            before = client.estimate_tokens(4000)
            for _ in range(100):
                await client.complete(MESSAGES)
            await client.aclose()
            return before, client.estimate_tokens(4000)

    before, after = asyncio.run(run())
    assert before == 1200
    assert after == pytest.approx(1050, abs=3)


# -- a ready client --


class ReadyClient:
    """As much of AsyncOpenAI as is used."""

    base_url = "http://ready"

    def __init__(self, answer: Callable[..., Any]) -> None:
        self.calls: list[dict[str, Any]] = []
        self.max_retries = 2
        self.answer = answer
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.create))

    def with_options(self, *, max_retries: int) -> ReadyClient:
        self.max_retries = max_retries
        return self

    async def create(self, **arguments: Any) -> Any:
        self.calls.append(arguments)
        return self.answer(**arguments)


def refusing_schemas(reason: str) -> ReadyClient:
    """Raises what openai's client would."""

    class BadRequestError(Exception):
        status_code = 400

    def answer(**arguments: Any) -> Any:
        if "response_format" in arguments:
            raise BadRequestError(reason)
        return completion("{}")

    return ReadyClient(answer)


class Model(dict[str, Any]):
    """As pydantic's models do."""

    def model_dump(self) -> dict[str, Any]:
        return dict(self)


def test_a_ready_client_is_asked_in_its_own_way_and_without_its_own_retries() -> None:
    ready = ReadyClient(lambda **_: Model(completion("Hi")))
    client = ChatClient(client=ready, model="m", sampling={"temperature": 0.1, "top_k": 5})
    answer = asyncio.run(client.complete(MESSAGES, schema=SCHEMA))
    asyncio.run(client.aclose())
    assert answer == ChatAnswer("Hi", None, 100, 20, "stop", is_held_to_schema=True, model="scripted")
    assert client.endpoints == ()
    assert ready.max_retries == 0
    assert ready.calls[0]["temperature"] == 0.1
    assert ready.calls[0]["extra_body"] == {"top_k": 5}
    assert ready.calls[0]["response_format"]["type"] == "json_schema"


def test_a_ready_clients_refusal_of_a_schema_is_understood_by_its_shape() -> None:
    ready = refusing_schemas("unknown field: response_format")
    client = ChatClient(client=ready, model="m")
    for _ in range(2):
        asyncio.run(client.complete(MESSAGES, schema=SCHEMA))
    assert ["response_format" in call for call in ready.calls] == [True, False, False]


def test_other_errors_of_a_ready_client_pass_through() -> None:
    class RateLimitError(Exception):
        status_code = 429

    def answer(**arguments: Any) -> Any:
        raise RateLimitError

    with pytest.raises(RateLimitError):
        asyncio.run(ChatClient(client=ReadyClient(answer), model="m").complete(MESSAGES, schema=SCHEMA))


def test_keep_alive_is_refused_with_a_client_that_keeps_its_own_connections() -> None:
    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=None)))
    with pytest.raises(InvalidInput, match="keep_alive must not be set with a client"):
        ChatClient(model="m", client=client, keep_alive=False)
