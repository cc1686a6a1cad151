"""The pairwise judge: order must not matter, nothing is asked twice, and a failure is a failure of the group."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
from collections import Counter
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from group_judging import answers_in, group, identity_of, judge_group, say
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import Request, ScriptedServer, completion

import rewardflow as rf
from rewardflow.errors import InvalidInput
from rewardflow.services.judges.llm_judge import LLMJudge
from rewardflow.services.judges.pairwise import PairwiseJudge, draw_pairs

identity = partial(identity_of, PairwiseJudge)


def bigger(request: Request) -> dict[str, Any]:
    first, second = (int(text) for text in answers_in(request))
    return say(better="tie" if first == second else "first" if first > second else "second")


def test_everyone_meets_everyone_in_both_orders() -> None:
    rewards, server = judge_group(bigger, lambda inner: PairwiseJudge(judge=inner), "3", "9", "0", "3")
    assert [reward.value for reward in rewards] == pytest.approx([0.5, 1.0, 0.0, 0.5])
    shown = Counter(tuple(answers_in(request)) for request in server.requests)
    assert len(server.requests) == 12
    assert shown["3", "9"] == shown["9", "3"] == 2  # there are two threes
    assert rewards[1].extras == {
        "won": 6.0,
        "won_shown_first": 3.0,
        "comparisons": 6,
        "pairs_split_by_order": 0,
        "answered_by": ["scripted"],
    }
    assert (rewards[1].explanation or "").startswith("won 6 of 6 comparisons; in 0 of 3 pairs the order decided\n")


def test_a_verdict_keeps_every_reason_that_was_given_about_it() -> None:
    def reasoned(request: Request) -> dict[str, Any]:
        first, second = (int(text) for text in answers_in(request))
        return completion(json.dumps({"reason": f"{first} before {second}", "better": "first"}))

    rewards, _ = judge_group(reasoned, lambda inner: PairwiseJudge(judge=inner), "3", "9", "0")
    assert set((rewards[1].explanation or "").splitlines()[1:]) == {
        "- beat index 0, shown first: 9 before 3",
        "- beat index 2, shown first: 9 before 0",
        "- lost to index 0, shown second: 3 before 9",
        "- lost to index 2, shown second: 0 before 9",
    }


def test_every_prompt_is_kept_once_with_the_answer_that_it_shows_first() -> None:
    rewards, server = judge_group(bigger, lambda inner: PairwiseJudge(judge=inner), "3", "9", "0")
    kept = [query for reward in rewards for query in (reward.query or "").split("\n\n==========\n\n")]
    assert sorted(kept) == sorted(request.user_prompt for request in server.requests)
    assert all("<<<FIRST ANSWER" in query for query in kept)
    assert (rewards[1].query or "").count(">>>\n9\n<<<END FIRST ANSWER") == 2


def test_two_verdicts_for_one_winner_agree_whatever_their_reasons() -> None:
    text = '{"reason": "a draft", "better": "tie"} so finally {"reason": "done", "better": "tie"}'
    judge = LLMJudge(model="m", base_urls=["http://j"], structured="prompt")

    async def run() -> list[rf.Reward]:
        async with ScriptedServer(lambda _: completion(text)) as server:
            pairwise = PairwiseJudge(judge=dataclasses.replace(judge, base_urls=[server.url]))
            try:
                return await pairwise.score_group(group("3", "9"))
            finally:
                await pairwise.aclose()

    rewards = asyncio.run(run())
    assert [reward.value for reward in rewards] == [0.5, 0.5]
    assert "shown first: done" in (rewards[0].explanation or "")


def test_a_judge_that_prefers_a_place_gives_half_to_each() -> None:
    rewards, _ = judge_group(lambda _: say(better="first"), lambda inner: PairwiseJudge(judge=inner), "3", "9", "0")
    assert [reward.value for reward in rewards] == [0.5, 0.5, 0.5]
    assert rewards[0].extras["pairs_split_by_order"] == 2


def test_usage_of_all_comparisons_is_the_groups() -> None:
    rewards, server = judge_group(bigger, lambda inner: PairwiseJudge(judge=inner), "3", "9", "0")
    assert sum(reward.tokens for reward in rewards) == pytest.approx(120 * len(server.requests), abs=3)


def test_no_more_comparisons_run_at_once_than_are_allowed() -> None:
    now, most = 0, 0

    async def slow(request: Request) -> dict[str, Any]:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.005)
        now -= 1
        return bigger(request)

    judge_group(slow, lambda inner: PairwiseJudge(judge=inner, parallel=3), "3", "9", "0", "5")
    assert most == 3


def test_a_failed_comparison_fails_the_group_with_its_own_reason() -> None:
    asked = itertools.count()

    def answer(request: Request) -> Any:
        return web.Response(status=503) if next(asked) == 3 else bigger(request)

    rewards, _ = judge_group(answer, lambda inner: PairwiseJudge(judge=inner), "3", "9", "0")
    assert [(reward.value, reward.kind) for reward in rewards] == [(None, "service")] * 3


def test_a_429_inside_a_group_is_told_as_one_and_stops_the_rest() -> None:
    async def run() -> int:
        async with ScriptedServer(lambda _: web.Response(status=429, headers={"Retry-After": "7"})) as server:
            judge = PairwiseJudge(judge=LLMJudge(model="m", base_urls=[server.url]), parallel=2)
            with pytest.raises(rf.RateLimited) as caught:
                await judge.score_group(group("3", "9", "0", "5"))
            await judge.aclose()
            assert (caught.value.headers or {})["retry-after"] == "7"
            return len(server.requests)

    assert asyncio.run(run()) == 2


def test_what_was_answered_before_a_failure_is_not_asked_again() -> None:
    failing = {5, 8}
    asked = itertools.count()

    def answer(request: Request) -> Any:
        return web.Response(status=503) if next(asked) in failing else bigger(request)

    rewards, server = judge_group(
        answer, lambda inner: PairwiseJudge(judge=inner, parallel=1), "3", "9", "0", "5", max_attempts=3
    )
    assert [reward.value for reward in rewards] == pytest.approx([1 / 3, 1.0, 0.0, 2 / 3])
    assert {reward.attempts for reward in rewards} == {3}
    assert len(server.requests) == 12 + len(failing)


def test_a_group_that_is_judged_again_later_is_asked_about_again() -> None:
    async def run() -> tuple[int, int]:
        async with ScriptedServer(bigger) as server:
            judge = PairwiseJudge(judge=LLMJudge(model="m", base_urls=[server.url]))
            await judge.score_group(group("3", "9"))
            once = len(server.requests)
            await judge.score_group(group("3", "9"))
            await judge.aclose()
            return once, len(server.requests)

    assert asyncio.run(run()) == (2, 4)


@pytest.mark.parametrize("text", ['{"reason": "x", "better": "third"}', '{"better": "first"}', "first", "{}"])
def test_an_unreadable_comparison_fails_the_group(text: str) -> None:
    rewards, _ = judge_group(lambda _: completion(text), lambda inner: PairwiseJudge(judge=inner), "3", "9")
    assert {(reward.value, reward.kind) for reward in rewards} == {(None, "unparsable")}


@given(st.integers(2, 40), st.sampled_from([2, 4, 6, 8]))
def test_every_answer_meets_its_number_of_opponents_and_no_pair_is_drawn_twice(count: int, opponents: int) -> None:
    pairs = draw_pairs(list(range(count)), opponents)
    met = Counter(itertools.chain.from_iterable(pairs))
    expected = count - 1 if count <= 6 else min(opponents, count - 1)
    assert set(met.values()) == {expected}
    assert len({frozenset(pair) for pair in pairs}) == len(pairs)
    assert all(one != other for one, other in pairs)


def test_one_answer_alone_cannot_be_compared() -> None:
    rewards, server = judge_group(bigger, lambda inner: PairwiseJudge(judge=inner), "3")
    assert (rewards[0].value, rewards[0].kind) == (None, "user_error")
    assert server.requests == []


def test_settings_are_the_identity_and_the_way_to_the_judge_is_not() -> None:
    assert identity(url="http://b") == identity(parallel=7) == identity()
    assert len({identity(), identity(model="n"), identity(seed=1), identity(opponents=2)}) == 4


@pytest.mark.parametrize("settings", [{"opponents": 3}, {"opponents": 0}, {"parallel": 0}, {"max_answer_chars": 0}])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="got"):
        PairwiseJudge(judge=LLMJudge(model="m", base_urls=["http://a"]), **settings)
