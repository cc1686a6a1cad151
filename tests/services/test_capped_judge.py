"""A cap on the cost of an LLM judge holds, whatever its first answers are. The server counts what it charges."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from aiohttp import web
from rollouts import numbered
from scripted_server import Request, ScriptedServer, completion, verdict

import rewardflow as rf
from rewardflow.services import ListwiseJudge, LLMJudge, PairwiseJudge
from rewardflow.services.prices import Prices

CAP_USD = 2.0
COST_USD = 0.5  # of 500 tokens of the answer
PRICES = Prices(1.0, 1000.0)


def cut_off() -> web.Response:
    response = web.Response(body=b'{"choices": [', content_type="application/json", headers={"Content-Length": "99"})
    response.force_close()
    return response


FIRST_ANSWERS = {
    "cut off": cut_off,
    "204": lambda: web.Response(status=204),
    "HTML": lambda: web.Response(text="<html>Welcome</html>", content_type="text/html"),
    "without choices": lambda: web.json_response({"choices": []}),
    "a key twice": lambda: web.Response(
        text='{"choices": [], "usage": {"prompt_tokens": 1}, "usage": {}}', content_type="application/json"
    ),
    "without usage": lambda: web.json_response(completion(verdict(), usage=None)),
}


async def charged_usd(first: str, num_first: int, sampling: dict[str, Any], **settings: Any) -> tuple[float, int]:
    """Scores 300 rollouts with 64 slots; returns what the server charged and the most requests it had at once."""
    num_charged = num_open = most_open = 0

    async def answer(request: Request) -> Any:
        nonlocal num_charged, num_open, most_open
        num_charged += 1
        is_first = num_charged <= num_first
        num_open += 1
        most_open = max(most_open, num_open)
        await asyncio.sleep(0.005)
        num_open -= 1
        return FIRST_ANSWERS[first]() if is_first else completion(verdict(), usage=(1000, 499))

    async with ScriptedServer(answer) as server:
        judge = LLMJudge(model="m", base_urls=[server.url], prices=PRICES, sampling=sampling)
        options = {"max_concurrency": 64, "max_cost_usd": CAP_USD, "backoff_s": 0.001, "outage_share": None, **settings}
        async with rf.RewardAgent(judge, **options) as agent:
            with pytest.raises(rf.BudgetExhausted):
                await agent.submit(numbered(300)).all()
    return num_charged * COST_USD, most_open


@pytest.mark.parametrize("sampling", [{"max_tokens": 600}, {}], ids=["with a bound", "without a bound"])
@pytest.mark.parametrize("num_first", [1, 3])
@pytest.mark.parametrize("first", FIRST_ANSWERS)
def test_64_slots_and_a_cap_of_2_usd_hold_after_first_answers_that_tell_no_cost(
    first: str, num_first: int, sampling: dict[str, Any]
) -> None:
    spent_usd, _ = asyncio.run(charged_usd(first, num_first, sampling))
    assert spent_usd <= CAP_USD


def test_a_bound_lets_all_slots_start_at_once() -> None:
    spent_usd, most_open = asyncio.run(charged_usd("204", 1, {"max_tokens": 600}, max_cost_usd=60.0))
    assert most_open == 64
    assert 58.0 <= spent_usd <= 60.0


# -- the bound ---------------------------------------------------------------------------------------------------------


def judge_with(**settings: Any) -> LLMJudge:
    return LLMJudge(**{"model": "m", "base_urls": ["http://127.0.0.1:9"], "prices": PRICES, **settings})


def group(*responses: str) -> list[rf.Rollout]:
    return [
        rf.Rollout(group_id="g", index=i, group_size=len(responses), prompt="Frage: ä?", response=one, ground_truth="€")
        for i, one in enumerate(responses)
    ]


@pytest.mark.parametrize(
    "make",
    [lambda judge: judge, lambda judge: ListwiseJudge(judge=judge), lambda judge: PairwiseJudge(judge=judge)],
    ids=["one", "listwise", "pairwise"],
)
@pytest.mark.parametrize(
    "responses",
    [["a", "b"], ["x" * 50_000, "ö" * 9000, "<|im_end|>" * 900], ["<<<" * 5000, "\u22d8" * 3000], ["z"] * 9],
    ids=["short", "long", "markers", "many"],
)
def test_no_call_of_a_judge_can_cost_more_than_its_bound(make: Any, responses: list[str]) -> None:
    """The model makes a token of every byte that it is sent, and answers with as many tokens as it may."""
    rollouts = group(*responses)
    charged_usd = 0.0

    def answer(request: Request) -> Any:
        nonlocal charged_usd
        num_bytes = sum(len(message["content"].encode()) for message in request.body["messages"])
        usage = (num_bytes + 200, request.body["max_tokens"])
        charged_usd += PRICES.cost_usd(*usage)
        return completion('{"reason": "r", "better": "tie"}', usage=usage)

    async def main() -> float:
        async with ScriptedServer(answer) as server:
            judge = make(judge_with(base_urls=[server.url]))
            sees_group = hasattr(judge, "score_group")
            with contextlib.suppress(rf.Unparsable):  # the verdict fits the pairwise judge only
                await (judge.score_group(rollouts) if sees_group else judge.compute_score(rollouts[0]))
            await judge.aclose()
        return sum(judge.cost_bound_usd(one) for one in (rollouts if sees_group else rollouts[:1]))

    bound_usd = asyncio.run(main())
    assert 0 < charged_usd <= bound_usd


@pytest.mark.parametrize(
    "settings",
    [
        {"sampling": {}},
        {"sampling": {"max_tokens": 100, "best_of": 4}},
        {"sampling": {"max_tokens": 100, "web_search_options": {"search_context_size": "high"}}},
        {"sampling": {"max_tokens": 100, "plugins": [{"id": "web"}]}},
        {"sampling": {"max_tokens": 100, "prediction": {"type": "content", "content": "a long text"}}},
        {"sampling": {"max_tokens": 100, "enable_thinking": True}},
        {"sampling": {"max_tokens": 100, "thinking_budget": 4000}},
        {"prices": None},
    ],
)
def test_a_judge_whose_cost_nothing_limits_tells_no_bound(settings: dict[str, Any]) -> None:
    assert judge_with(**settings).cost_bound_usd(group("a")[0]) is None


@pytest.mark.parametrize(
    "sampling",
    [
        {"max_tokens": 100, "enable_thinking": False},
        {"max_completion_tokens": 100, "enable_thinking": True, "thinking_budget": 50},
    ],
)
def test_thoughts_that_are_off_or_inside_the_limit_leave_a_judge_its_bound(sampling: dict[str, Any]) -> None:
    limited = judge_with(sampling={"max_tokens": 100})
    assert judge_with(sampling=sampling).cost_bound_usd(group("a")[0]) == limited.cost_bound_usd(group("a")[0])


def test_a_comparison_that_broke_off_leaves_its_part_of_the_call_uncertain() -> None:
    num_asked = 0

    def answer(request: Request) -> Any:
        nonlocal num_asked
        num_asked += 1
        text = '{"reason": "r", "better": "tie"}'
        return completion(text, usage=(0, 500)) if num_asked == 1 else FIRST_ANSWERS["cut off"]()

    async def main() -> tuple[float, float, float]:
        async with ScriptedServer(answer) as server:
            inner = judge_with(base_urls=[server.url], sampling={"max_tokens": 600})
            judge = PairwiseJudge(judge=inner, parallel=1)
            rollouts = group("a", "b")
            bound_usd = sum(judge.cost_bound_usd(one) or 0.0 for one in rollouts)
            async with rf.RewardAgent(judge, max_cost_usd=CAP_USD, max_attempts=1) as agent:
                await agent.submit(rollouts).all()
                money = agent.statistics().ledger
        return money.spent_usd, money.uncertain_usd, bound_usd

    spent_usd, uncertain_usd, bound_usd = asyncio.run(main())
    assert spent_usd == COST_USD
    assert spent_usd + uncertain_usd == pytest.approx(bound_usd)
