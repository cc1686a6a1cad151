"""With reuse of content, equal questions are asked once."""

from __future__ import annotations

import asyncio

from rollouts import group
from scoring import score_groups

import rewardflow as rf
from rewardflow import clock

_asked: list[str] = []


async def deterministic(solution_str: str) -> float:
    _asked.append(solution_str)
    rf.report_usage(cost_usd=1.0)
    await asyncio.sleep(10)
    if solution_str == "flaky" and _asked.count("flaky") == 1:
        raise ValueError("the first time")
    return float(len(solution_str))


def test_with_reuse_of_content_equal_questions_are_asked_once_and_paid_once() -> None:
    async def main() -> None:
        _asked.clear()
        async with rf.RewardAgent(deterministic, reuse="content") as agent:
            first, second, third = await agent.submit([*group("a", "x"), *group("b", "x"), *group("c", "yy")]).all()
            assert [one.rewards[0].value for one in (first, second, third)] == [1.0, 1.0, 2.0]
            assert sorted(_asked) == ["x", "yy"]
            assert agent.statistics().ledger.spent_usd == 2.0
            assert sum(one.rewards[0].cost_usd for one in (first, second, third)) == 2.0
            assert agent.statistics().verdicts.cached == 1

    clock.run(main())


def test_with_reuse_of_content_a_failure_or_a_cancellation_of_one_is_not_shared_by_the_others() -> None:
    async def main() -> None:
        _asked.clear()
        async with rf.RewardAgent(deterministic, reuse="content") as agent:
            groups = await agent.submit([rollout for name in "abc" for rollout in group(name, "flaky")]).all()
            assert [one.rewards[0].value for one in groups] == [None, 5.0, 5.0]
            leader, follower = agent.submit(group("d", "zz", step=1)), agent.submit(group("e", "zz", step=1))
            await asyncio.sleep(1)
            leader.cancel()
            assert (await leader.all())[0].rewards[0].kind == "cancelled"
            assert (await follower.all())[0].rewards[0].value == 2.0

    clock.run(main())


def test_by_default_equal_questions_are_asked_for_every_sample() -> None:
    _asked.clear()
    score_groups(deterministic, [*group("a", "x"), *group("b", "x")])
    assert _asked == ["x", "x"]
