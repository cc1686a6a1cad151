"""One reward or a weighted sum of several, each under its own account unless told to share."""

from __future__ import annotations

import asyncio

import pytest
from scoring import score_one

import rewardflow as rf
from rewardflow import clock


async def one(solution_str: str) -> float:
    return 1.0


async def two(solution_str: str) -> dict[str, object]:
    return {"score": 2.0, "components": {"style": 0.5}, "tone": "kind"}


def test_the_sum_is_weighted_and_its_parts_are_kept_apart() -> None:
    reward = score_one([rf.Weighted(one, 0.5, name="a"), rf.Weighted(two, 0.25, name="b")])
    assert reward.value == 1.0
    assert reward.components == {"a": 1.0, "b": 2.0, "b/style": 0.5}
    assert reward.extras == {"b/tone": "kind"}


def test_a_single_weighted_reward_is_weighted_too() -> None:
    assert score_one([rf.Weighted(two, 3.0, name="b")]).value == 6.0


def test_if_one_part_fails_the_sum_is_failed_not_smaller() -> None:
    async def broken(solution_str: str) -> float:
        raise ValueError("no")

    reward = score_one([rf.Weighted(one, name="a"), rf.Weighted(broken, name="b")])
    assert reward.value is None
    assert reward.kind == "user_error"
    assert "component 'b' failed" in str(reward.error)
    assert reward.components == {"a": 1.0, "b": None}


@pytest.mark.parametrize(
    ("reward", "says"),
    [
        ([], "at least one reward is needed"),
        ([one], "must hold rewardflow.Weighted, got function"),
        ([rf.Weighted(one, name="a"), rf.Weighted(two, name="a")], "distinct names, got a more than once"),
    ],
)
def test_a_wrong_list_of_rewards_is_refused(reward: list[object], says: str) -> None:
    with pytest.raises(rf.InvalidInput, match=says):
        rf.RewardAgent(reward)


def test_a_weight_must_be_a_number_and_limits_must_exist() -> None:
    with pytest.raises(rf.InvalidInput, match="weight must be a finite number"):
        rf.Weighted(one, weight=float("inf"))
    with pytest.raises(rf.InvalidInput, match="did you mean 'rpm'"):
        rf.Weighted(one, limits={"rpmm": 5})


def most_at_once(account: str | None) -> int:
    inside, most = 0, 0

    async def judge(solution_str: str) -> float:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(1)
        inside -= 1
        return 1.0

    async def other(solution_str: str) -> float:
        return await judge(solution_str)

    async def main() -> None:
        parts = [rf.Weighted(judge, name="a", account=account), rf.Weighted(other, name="b", account=account)]
        async with rf.RewardAgent(parts, max_concurrency=3) as agent:
            await agent.submit(rf.Rollout(group_id=str(i), response="") for i in range(20)).all()

    clock.run(main())
    return most


def test_rewards_of_one_account_share_its_limit_and_others_do_not() -> None:
    assert most_at_once("the same key") == 3
    assert most_at_once(None) == 6


def test_one_account_cannot_have_two_different_limits() -> None:
    parts = [
        rf.Weighted(one, name="a", account="x", limits={"rpm": 60}),
        rf.Weighted(two, name="b", account="x", limits={"rpm": 90}),
    ]
    with pytest.raises(rf.InvalidInput, match="rewards of one account must have the same limits"):
        score_one(parts)
