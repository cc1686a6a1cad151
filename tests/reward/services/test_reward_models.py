"""Reward models and JSON scorers against a real server on loopback: what is sent, what is read, what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import ScriptedServer

import rewardflow as rf
from rewardflow.errors import InvalidInput
from rewardflow.reward.contract import load_reward
from rewardflow.reward.services.reward_models import JsonScorer, RewardModel, fill, fill_batch, follow, read_score
from rewardflow.reward.source import RewardSource

Reply = Callable[[dict[str, Any]], Any]  # from a request's JSON to an answer's, or to a whole response


def serving(reply: Reply) -> ScriptedServer:
    return ScriptedServer(lambda request: reply(request.body))


def rollouts(*responses: str, **fields: Any) -> list[rf.Rollout]:
    return [
        rf.Rollout(group_id="q", index=i, group_size=len(responses), prompt="2+2?", response=one, **fields)
        for i, one in enumerate(responses)
    ]


def score(
    reply: Reply, reward: Callable[[str], Any], *responses: str, **fields: Any
) -> tuple[list[rf.Reward], ScriptedServer]:
    """What the agent makes of a reward that is built with the server's address."""

    async def run() -> tuple[list[rf.Reward], ScriptedServer]:
        async with serving(reply) as server:
            async with rf.RewardAgent(reward(server.url), max_attempts=2, backoff_s=0.01) as agent:
                groups = await agent.submit(rollouts(*responses, **fields)).all()
            return list(groups[0].rewards), server

    return asyncio.run(run())


def paths(server: ScriptedServer) -> list[str]:
    return [request.path for request in server.requests]


def bodies(server: ScriptedServer) -> list[Any]:
    return [request.body for request in server.requests]


# -- reward models --


@pytest.mark.parametrize("data", [[0.25], 0.25, [[0.5], [0.25]], [0.9, 0.25]])
def test_vllms_pooling_gives_the_last_value_of_the_last_token(data: Any) -> None:
    answer = {"data": [{"index": 0, "object": "pooling", "data": data}], "usage": {"total_tokens": 17}}
    rewards, server = score(lambda _: answer, lambda url: RewardModel(model="rm", base_urls=f"{url}/v1"), "4")
    assert (rewards[0].value, rewards[0].tokens) == (0.25, 17)
    assert paths(server) == ["/pooling"]
    assert bodies(server) == [
        {
            "model": "rm",
            "messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}],
        }
    ]


def test_messages_of_the_rollout_are_sent_as_they_are() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    _, server = score(
        lambda _: {"data": [{"data": [1.0]}]},
        lambda url: RewardModel(model="rm", base_urls=[url]),
        "4",
        messages=messages,
    )
    assert bodies(server)[0]["messages"] == [*messages, {"role": "assistant", "content": "4"}]


def test_vllms_classify_gives_the_chosen_class_and_keeps_the_others() -> None:
    answer = {"data": [{"index": 0, "label": "good", "probs": [0.75, 0.25], "num_classes": 2}]}

    def model(url: str) -> RewardModel:
        return RewardModel(
            model="rm", base_urls=[url], api="classify", send="text", template="{prompt} {response}", index=0
        )

    rewards, server = score(lambda _: answer, model, "4")
    assert (rewards[0].value, rewards[0].extras) == (0.75, {"values": [0.75, 0.25]})
    assert paths(server) == ["/classify"]
    assert bodies(server) == [{"model": "rm", "input": "2+2? 4"}]


def test_raw_logits_can_be_asked_for() -> None:
    _, server = score(
        lambda _: {"data": [{"probs": [-3.5]}]},
        lambda url: RewardModel(model="rm", base_urls=[url], api="classify", use_activation=False),
        "4",
    )
    assert bodies(server)[0]["use_activation"] is False


def test_vllms_score_takes_prompt_and_response_as_a_pair() -> None:
    rewards, server = score(
        lambda _: {"data": [{"index": 0, "score": 0.5}]},
        lambda url: RewardModel(model="rm", base_urls=[url], api="score"),
        "4",
    )
    assert rewards[0].value == 0.5
    assert (paths(server), bodies(server)) == (["/score"], [{"model": "rm", "text_1": "2+2?", "text_2": "4"}])


@pytest.mark.parametrize("is_list", [False, True])
def test_sglangs_classify_gives_the_reward_as_an_embedding(is_list: bool) -> None:
    one = {"embedding": [-2.5], "meta_info": {"prompt_tokens": 9}}
    rewards, server = score(
        lambda _: [one] if is_list else one,
        lambda url: RewardModel(
            model="rm", base_urls=[url], api="sglang", send="text", template="U:{prompt} A:{response}"
        ),
        "4",
    )
    assert (rewards[0].value, rewards[0].tokens) == (-2.5, 9)
    assert (paths(server), bodies(server)) == (["/classify"], [{"model": "rm", "text": "U:2+2? A:4"}])


def test_sglang_cannot_apply_a_chat_template() -> None:
    with pytest.raises(InvalidInput, match="send='text'"):
        RewardModel(model="rm", base_urls="http://rm", api="sglang")


@pytest.mark.parametrize(
    "answer",
    [
        *({}, [], None, 1.0, {"data": []}, {"data": [{}]}),
        *({"data": [{"data": data}]} for data in ([], ["1.0"], [None], [True], "AAAA")),
    ],
)
def test_an_answer_of_another_shape_is_a_failed_verdict(answer: Any) -> None:
    rewards, _ = score(lambda _: answer, lambda url: RewardModel(model="rm", base_urls=[url]), "4")
    assert (rewards[0].value, rewards[0].kind) == (None, "unparsable")


def test_a_server_that_fails_once_is_asked_again() -> None:
    answers = iter([web.Response(status=500, text="oops"), {"data": [{"data": [1.0]}]}])
    rewards, _ = score(lambda _: next(answers), lambda url: RewardModel(model="rm", base_urls=[url]), "4")
    assert (rewards[0].value, rewards[0].attempts) == (1.0, 2)


def test_the_key_is_read_when_a_request_is_sent_and_is_no_part_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RM_KEY", "sk-very-secret-1")
    model = RewardModel(model="rm", base_urls="http://unused", api_key_env="RM_KEY")
    assert "secret" not in repr(model)
    _, server = score(
        lambda _: {"data": [{"data": [1.0]}]},
        lambda url: RewardModel(model="rm", base_urls=[url], api_key_env="RM_KEY"),
        "4",
    )
    assert server.requests[0].headers["Authorization"] == "Bearer sk-very-secret-1"


def test_a_missing_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RM_KEY", raising=False)
    rewards, server = score(
        lambda _: {}, lambda url: RewardModel(model="rm", base_urls=[url], api_key_env="RM_KEY"), "4"
    )
    assert rewards[0].kind == "user_error"
    assert "RM_KEY" in (rewards[0].error or "")
    assert bodies(server) == []


def test_calls_go_to_the_endpoint_that_the_agent_chose() -> None:
    async def run() -> list[int]:
        answer = {"data": [{"data": [1.0]}]}
        async with serving(lambda _: answer) as first, serving(lambda _: answer) as second:
            model = RewardModel(model="rm", base_urls=[first.url, second.url])
            async with rf.RewardAgent(model) as agent:
                await agent.submit(rollouts(*"abcdefgh")).all()
            return [len(first.requests), len(second.requests)]

    counts = asyncio.run(run())
    assert sum(counts) == 8
    assert all(counts)


@pytest.mark.parametrize("base_urls", ["", [], "rm:8000", ["http://ok", "ftp://no"]])
def test_addresses_are_checked_when_the_reward_is_built(base_urls: Any) -> None:
    with pytest.raises(InvalidInput, match="base_urls must be"):
        RewardModel(model="rm", base_urls=base_urls)


def test_the_same_object_serves_one_run_after_another() -> None:
    async def run(model: RewardModel) -> float | None:
        async with rf.RewardAgent(model) as agent:
            return (await agent.submit(rollouts("4")).all())[0].rewards[0].value

    async def main() -> list[float | None]:
        async with serving(lambda _: {"data": [{"data": [1.0]}]}) as server:
            model = RewardModel(model="rm", base_urls=[server.url])
            return [await run(model), await run(model)]

    assert asyncio.run(main()) == [1.0, 1.0]


# -- JSON scorers --


def test_a_request_is_filled_and_a_score_is_found_by_its_path() -> None:
    def scorer(url: str) -> JsonScorer:
        return JsonScorer(
            urls=f"{url}/rate",
            request={
                "in": {"q": "{prompt}", "all": ["{response}", "Truth: {ground_truth}"]},
                "k": 3,
                "d": "{extra_info.d}",
            },
            score_path="out.0.value",
            explanation_path="out.0.why",
        )

    answer = {"out": [{"value": 7, "why": "fine"}]}
    rewards, server = score(lambda _: answer, scorer, "4", ground_truth=4, extra_info={"d": {"x": [1]}})
    assert (rewards[0].value, rewards[0].explanation) == (7.0, "fine")
    assert paths(server) == ["/rate"]
    assert bodies(server) == [{"in": {"q": "2+2?", "all": ["4", "Truth: 4"]}, "k": 3, "d": {"x": [1]}}]


def test_what_a_policy_writes_is_never_taken_for_a_placeholder() -> None:
    _, server = score(
        lambda _: {"score": 1}, lambda url: JsonScorer(urls=url), "{ground_truth} {{x}}", ground_truth="42"
    )
    assert bodies(server)[0]["response"] == "{ground_truth} {{x}}"


def test_the_batch_form_asks_once_for_a_group_as_openrlhf_does() -> None:
    rewards, server = score(
        lambda body: {"rewards": [float(len(query)) for query in body["query"]]},
        lambda url: JsonScorer(urls=f"{url}/get_reward", batch=True),
        "4",
        "four",
        ground_truth="4",
    )
    assert [reward.value for reward in rewards] == [5.0, 8.0]
    assert bodies(server) == [{"query": ["2+2?4", "2+2?four"], "prompts": ["2+2?"] * 2, "labels": ["4", "4"]}]


def test_a_hole_in_a_batch_fails_only_its_own_rollout() -> None:
    rewards, _ = score(lambda _: {"rewards": [1.0, None]}, lambda url: JsonScorer(urls=url, batch=True), "4", "5")
    assert [(reward.value, reward.kind) for reward in rewards] == [(1.0, None), (None, "unparsable")]


@pytest.mark.parametrize("answer", [{"rewards": [1.0]}, {"rewards": 1.0}, {"rewards": [1.0] * 3}, {}, [1.0, 1.0]])
def test_a_batch_of_another_size_fails_the_group(answer: Any) -> None:
    rewards, _ = score(lambda _: answer, lambda url: JsonScorer(urls=url, batch=True), "4", "5")
    assert [(reward.value, reward.kind) for reward in rewards] == [(None, "unparsable")] * 2


def test_one_form_scores_rollouts_and_the_other_groups() -> None:
    units = [load_reward(RewardSource.of(JsonScorer(urls="http://s", batch=batch))).unit for batch in (False, True)]
    assert units == ["rollout", "group"]


def test_a_key_may_go_into_a_header_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCORER_KEY", "abc-123-xyz")
    _, server = score(
        lambda _: {"score": 1},
        lambda url: JsonScorer(urls=url, api_key_env="SCORER_KEY", api_key_header="X-Api-Key"),
        "4",
    )
    assert server.requests[0].headers["X-Api-Key"] == "abc-123-xyz"


def test_a_placeholder_that_nothing_fills_is_refused_when_the_scorer_is_built() -> None:
    with pytest.raises(InvalidInput, match=r"got \{answer\}"):
        JsonScorer(urls="http://s", request={"a": ["{answer}"]})


def test_a_missing_extra_is_an_error_that_names_it() -> None:
    rewards, _ = score(lambda _: {"score": 1}, lambda url: JsonScorer(urls=url, request={"a": "{extra_info.b}"}), "4")
    assert rewards[0].kind == "user_error"
    assert "'b'" in (rewards[0].error or "")


# -- the parts --

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(JSON, st.text(alphabet="ab.01-", max_size=8))
def test_no_path_into_any_answer_raises_anything_but_unparsable(answer: Any, path: str) -> None:
    with contextlib.suppress(rf.Unparsable):
        read_score(follow(answer, path))


def test_a_whole_number_beyond_a_double_is_no_score() -> None:
    with pytest.raises(rf.Unparsable):
        read_score(10**400)


@given(st.text(), st.text())
def test_filling_keeps_every_text_as_it_is(prompt: str, response: str) -> None:
    rollout = rf.Rollout(group_id="q", prompt=prompt, response=response)
    assert fill("{prompt}|{{}}|{response}", rollout) == f"{prompt}|{{}}|{response}"
    assert fill_batch({"a": "{response}", "b": "c"}, [rollout, rollout]) == {"a": [response] * 2, "b": "c"}


def test_a_scorer_that_was_used_travels_without_its_connections() -> None:
    def reply(body: dict[str, Any]) -> Any:
        return {"data": [{"data": [0.5]}]} if "messages" in body else {"score": 0.5}

    async def run() -> None:
        async with serving(reply) as server:
            for one in (RewardModel(model="m", base_urls=server.url), JsonScorer(urls=server.url)):
                await one.compute_score(rollouts("4")[0])
                arrived = pickle.loads(pickle.dumps(one))
                assert arrived == one
                assert "_http" not in vars(arrived)
                assert (await arrived.compute_score(rollouts("4")[0])).value == 0.5
                await one.aclose()
                await arrived.aclose()

    asyncio.run(run())
