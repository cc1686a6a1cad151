"""A judge inside another reward: its verdicts, its failures, and what it must not see."""

from __future__ import annotations

import asyncio

import pytest
from judging_members import Member
from rollouts import singles

import rewardflow as rf
from rewardflow import clock
from rewardflow.errors import InvalidInput
from rewardflow.services.inner_judge import InnerJudge, shared_endpoints
from rewardflow.services.judges.llm_judge import LLMJudge
from rewardflow.services.rules import GSM8K


def test_a_rule_and_a_plain_function_are_asked_in_a_thread() -> None:
    def half(response: str) -> float:
        return 0.5

    async def run() -> list[float | None]:
        (rollout,) = singles("#### 4", ground_truth="4")
        return [(await InnerJudge.of("judges", judge).score(rollout)).value for judge in (GSM8K(), half)]

    assert asyncio.run(run()) == [1.0, 0.5]


@pytest.mark.parametrize(
    ("kind", "error"),
    [("unparsable", rf.Unparsable), ("rate_limited", rf.RateLimited), ("service", rf.ServiceError)],
)
def test_a_failed_verdict_is_raised_as_the_error_of_its_kind(kind: rf.FailureKind, error: type[Exception]) -> None:
    judge = InnerJudge.of("judges", Member(lambda rollout: rf.Reward(kind=kind, error="so")))
    with pytest.raises(error, match="so"):
        clock.run(judge.score(singles("x")[0]))


def test_a_judge_of_groups_is_refused() -> None:
    class OfGroups:
        async def score_group(self, rollouts: list[rf.Rollout]) -> list[float]:
            return [0.0 for _ in rollouts]

    with pytest.raises(InvalidInput, match="then must score one rollout at a time"):
        InnerJudge.of("then", OfGroups())


def test_endpoints_are_passed_on_if_all_judges_share_them() -> None:
    one, other = (InnerJudge.of("j", LLMJudge(model=model, base_urls=["http://a", "http://b"])) for model in ("m", "n"))
    elsewhere = InnerJudge.of("j", LLMJudge(model="m", base_urls=["http://c"]))
    assert shared_endpoints([one, other]) == ("http://a", "http://b")
    assert shared_endpoints([one, elsewhere]) == ()


def test_a_cost_that_a_judge_returns_counts_for_the_outer_call_also_if_the_verdict_failed() -> None:
    async def told(response: str) -> dict[str, object]:
        return {"score": None if response == "bad" else 0.5, "cost_usd": 0.25, "tokens": 7}

    async def outer(rollout: rf.Rollout) -> float | None:
        return (await InnerJudge.of("judges", told).score(rollout)).value

    async def run() -> tuple[float, int, list[float]]:
        async with rf.RewardAgent(outer, max_attempts=1) as agent:
            groups = await agent.submit(singles("good", "bad")).all()
            money = agent.statistics().ledger
            return money.spent_usd, money.tokens, [group.rewards[0].cost_usd for group in groups]

    assert clock.run(run()) == (0.5, 14, [0.25, 0.25])
