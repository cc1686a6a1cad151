"""JSON scorers against a real server on loopback: what is sent, what is read, what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from served_scores import assert_travels_after_use, bodies, paths, score_group_from_server, serving

from rewardflow.errors import InvalidInput
from rewardflow.reward.code.contract import load_reward
from rewardflow.reward.code.source import RewardSource
from rewardflow.services.json_scorer import JsonScorer


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
    rewards, server = score_group_from_server(
        lambda _: answer, scorer, "4", ground_truth=4, extra_info={"d": {"x": [1]}}
    )
    assert (rewards[0].value, rewards[0].explanation) == (7.0, "fine")
    assert paths(server) == ["/rate"]
    assert bodies(server) == [{"in": {"q": "2+2?", "all": ["4", "Truth: 4"]}, "k": 3, "d": {"x": [1]}}]


def test_what_a_policy_writes_is_never_taken_for_a_placeholder() -> None:
    _, server = score_group_from_server(
        lambda _: {"score": 1}, lambda url: JsonScorer(urls=url), "{ground_truth} {{x}}", ground_truth="42"
    )
    assert bodies(server)[0]["response"] == "{ground_truth} {{x}}"


@pytest.mark.parametrize("batch", [False, True])
def test_half_a_surrogate_pair_in_a_response_costs_neither_its_score_nor_its_groups(batch: bool) -> None:
    rewards, server = score_group_from_server(
        lambda body: {"rewards": [1.0] * len(body["query"])} if batch else {"score": 1.0},
        lambda url: JsonScorer(urls=url, batch=batch),
        "a\ud800b",
        "fine",
    )
    assert [reward.value for reward in rewards] == [1.0, 1.0]
    assert "a\ufffdb" in str(bodies(server))


def test_the_batch_form_asks_once_for_a_group_as_openrlhf_does() -> None:
    rewards, server = score_group_from_server(
        lambda body: {"rewards": [float(len(query)) for query in body["query"]]},
        lambda url: JsonScorer(urls=f"{url}/get_reward", batch=True),
        "4",
        "four",
        ground_truth="4",
    )
    assert [reward.value for reward in rewards] == [5.0, 8.0]
    assert bodies(server) == [{"query": ["2+2?4", "2+2?four"], "prompts": ["2+2?"] * 2, "labels": ["4", "4"]}]


def test_a_hole_in_a_batch_fails_only_its_own_rollout() -> None:
    rewards, _ = score_group_from_server(
        lambda _: {"rewards": [1.0, None]}, lambda url: JsonScorer(urls=url, batch=True), "4", "5"
    )
    assert [(reward.value, reward.kind) for reward in rewards] == [(1.0, None), (None, "unparsable")]


@pytest.mark.parametrize("answer", [{"rewards": [1.0]}, {"rewards": 1.0}, {"rewards": [1.0] * 3}, {}, [1.0, 1.0]])
def test_a_batch_of_another_size_fails_the_group(answer: Any) -> None:
    rewards, _ = score_group_from_server(lambda _: answer, lambda url: JsonScorer(urls=url, batch=True), "4", "5")
    assert [(reward.value, reward.kind) for reward in rewards] == [(None, "unparsable")] * 2


def test_one_form_scores_rollouts_and_the_other_groups() -> None:
    units = [load_reward(RewardSource.of(JsonScorer(urls="http://s", batch=batch))).unit for batch in (False, True)]
    assert units == ["rollout", "group"]


def test_a_key_may_go_into_a_header_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCORER_KEY", "abc-123-xyz")
    _, server = score_group_from_server(
        lambda _: {"score": 1},
        lambda url: JsonScorer(urls=url, api_key_env="SCORER_KEY", api_key_header="X-Api-Key"),
        "4",
    )
    assert server.requests[0].headers["X-Api-Key"] == "abc-123-xyz"


def test_a_placeholder_that_nothing_fills_is_refused_when_the_scorer_is_built() -> None:
    with pytest.raises(InvalidInput, match=r"got \{answer\}"):
        JsonScorer(urls="http://s", request={"a": ["{answer}"]})


def test_a_missing_extra_is_an_error_that_names_it() -> None:
    rewards, _ = score_group_from_server(
        lambda _: {"score": 1}, lambda url: JsonScorer(urls=url, request={"a": "{extra_info.b}"}), "4"
    )
    assert rewards[0].kind == "user_error"
    assert "'b'" in (rewards[0].error or "")


def test_a_scorer_that_was_used_travels_without_its_connections() -> None:
    assert_travels_after_use(lambda _: {"score": 0.5}, lambda url: JsonScorer(urls=url))


def test_a_missing_key_is_named_and_a_server_that_answers_anything_is_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with serving(lambda _: {}) as server:
            scorer = JsonScorer(urls=server.url, api_key_env="SCORER_KEY")
            monkeypatch.delenv("SCORER_KEY", raising=False)
            with pytest.raises(InvalidInput, match="SCORER_KEY"):
                await scorer.check()
            monkeypatch.setenv("SCORER_KEY", "abc-123-xyz")
            await scorer.check()
            await scorer.aclose()
            assert [look.headers["Authorization"] for look in server.looks] == ["Bearer abc-123-xyz"]

    asyncio.run(run())
    assert caplog.text == ""


def test_nobody_at_the_address_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        scorer = JsonScorer(urls="http://127.0.0.1:9/score?key=s3cret-s3cret")
        await scorer.check()
        await scorer.aclose()

    asyncio.run(run())
    assert "the service does not answer yet" in caplog.text
    assert "s3cret" not in caplog.text


# -- identity and cost --


def identity(**settings: Any) -> str:
    return load_reward(RewardSource.of(JsonScorer(**{"urls": "http://a", **settings}))).identity


def test_a_scorer_is_known_by_its_name_or_else_by_its_addresses() -> None:
    assert identity(scorer="toxicity") == identity(scorer="toxicity", urls=["http://b", "http://c"])
    assert identity(urls=["http://b", "http://c"]) == identity(urls=["http://c", "http://b"])
    others = [{}, {"urls": "http://b"}, {"scorer": "a"}, {"scorer": "b"}, {"score_path": "x"}, {"request": {"a": 1}}]
    assert len({identity(**settings) for settings in others}) == len(others)


def test_how_to_get_in_and_what_it_costs_are_no_part_of_the_identity() -> None:
    assert identity() == identity(api_key_env="KEY", api_key_header="X-Key", call_cost_usd=0.1)


def test_a_request_costs_what_it_is_said_to_cost() -> None:
    rewards, _ = score_group_from_server(
        lambda _: {"score": 1}, lambda url: JsonScorer(urls=url, call_cost_usd=0.25), "4"
    )
    assert rewards[0].cost_usd == 0.25
    assert JsonScorer(urls="http://a", call_cost_usd=0.0).price_problem() is None
    assert "call_cost_usd" in (JsonScorer(urls="http://a").price_problem() or "")
