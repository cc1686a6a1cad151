"""Weighted rewards: one sum for each rollout, with its components."""

from __future__ import annotations

import asyncio
from typing import Any

from agent_at_work import now
from rollouts import group
from scoring import score_groups, values
from simple_rewards import (
    GroupJudge,
    Logging,
    PostProcessing,
    number,
)

import rewardflow as rf


async def length(solution_str: str) -> dict[str, Any]:
    return {"score": float(len(solution_str)), "letters": solution_str}


def test_weighted_rewards_make_one_sum_and_show_each_component() -> None:
    parts = [rf.Weighted(length, 0.5, name="length"), rf.Weighted(number, 2.0, name="number")]
    (one,) = score_groups(parts, group("g", "12", "3"))
    assert [reward.value for reward in one.rewards] == [0.5 * 2 + 2.0 * 12, 0.5 * 1 + 2.0 * 3]
    assert dict(one.rewards[0].components) == {"length": 2.0, "number": 12.0}


def test_if_one_component_fails_the_sum_is_failed_not_smaller_and_the_others_are_still_shown() -> None:
    parts = [rf.Weighted(length, name="length"), rf.Weighted(number, name="number")]
    (one,) = score_groups(parts, group("g", "oops", "3"))
    failed, scored = one.rewards
    assert (failed.value, failed.status) == (None, "failed")
    assert failed.components["length"] == 4.0
    assert failed.components["number"] is None
    assert "number" in (failed.error or "")
    assert scored.value == 4.0


def test_a_failed_component_of_weight_zero_still_fails_the_sum() -> None:
    parts = [rf.Weighted(length, name="length"), rf.Weighted(number, 0.0, name="number")]
    assert score_groups(parts, group("g", "oops"))[0].rewards[0].value is None


def test_a_negative_weight_subtracts() -> None:
    parts = [rf.Weighted(number, name="number"), rf.Weighted(length, -1.0, name="length")]
    assert score_groups(parts, group("g", "12"))[0].rewards[0].value == 10.0


def test_weights_that_overflow_give_a_failed_verdict_not_an_error() -> None:
    parts = [rf.Weighted(number, 1e308, name="a"), rf.Weighted(number, 1e308, name="b")]
    assert values(score_groups(parts, [*group("g", "10"), *group("h", "0")])) == {"g": [None], "h": [0.0]}


def test_group_and_single_rewards_and_post_processing_mix_in_one_sum() -> None:
    judge = PostProcessing(lambda scores: [-score for score in scores])
    parts = [rf.Weighted(judge, name="judge"), rf.Weighted(GroupJudge(), 10.0, name="group")]
    assert values(score_groups(parts, group("g", "1", "2"))) == {"g": [9.0, 18.0]}


def test_a_component_with_few_slots_holds_up_no_other_component() -> None:
    started: list[tuple[str, float]] = []

    async def rule(solution_str: str) -> float:
        started.append(("rule", now()))
        return 1.0

    async def judge(solution_str: str) -> float:
        started.append(("judge", now()))
        await asyncio.sleep(10)
        return 1.0

    parts = [rf.Weighted(judge, name="judge", limits={"max_concurrency": 1}), rf.Weighted(rule, name="rule")]
    score_groups(parts, [rollout for i in range(4) for rollout in group(f"g{i}", "x")])
    assert [at for name, at in started if name == "rule"] == [0.0] * 4
    assert [at for name, at in started if name == "judge"] == [0.0, 10.0, 20.0, 30.0]


def test_rewards_of_one_account_share_its_limit() -> None:
    out = most = 0

    def make(name: str) -> rf.Weighted:
        async def judge(solution_str: str) -> float:
            nonlocal out, most
            out += 1
            most = max(most, out)
            await asyncio.sleep(1)
            out -= 1
            return 1.0

        return rf.Weighted(judge, name=name, account="one key")

    rollouts = [rollout for i in range(10) for rollout in group(f"g{i}", "x")]
    score_groups([make("a"), make("b")], rollouts, max_concurrency=3)
    assert most == 3


def test_each_weighted_reward_logs_its_own_verdicts() -> None:
    first, second = Logging(), Logging()
    score_groups([rf.Weighted(first, name="first"), rf.Weighted(second, name="second")], group("g", "1", "2"))
    for judge in (first, second):
        ((_, _, results, _, uids),) = judge.logged
        assert sorted(results) == ["e1", "e2"]
        assert uids == ["g", "g"]
        assert judge.num_closed == 1
