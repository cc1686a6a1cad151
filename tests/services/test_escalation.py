"""The dear judge is asked where its verdict could change an advantage, within its budget, and nowhere else."""

from __future__ import annotations

import math
import statistics

import pytest
from judging_members import Member

import rewardflow as rf
from rewardflow import clock
from rewardflow.errors import InvalidInput
from rewardflow.reward.code.source import RewardSource
from rewardflow.services.escalation import Escalation, normalised
from rewardflow.services.reward_file import load_reward_contents


def group(*responses: str, group_id: str = "q") -> list[rf.Rollout]:
    return [
        rf.Rollout(group_id=group_id, index=i, group_size=len(responses), response=text)
        for i, text in enumerate(responses)
    ]


def judged(escalation: Escalation, rollouts: list[rf.Rollout]) -> list[rf.Reward]:
    async def run() -> list[rf.Reward]:
        async with rf.RewardAgent(escalation, backoff_s=0.1) as agent:
            groups = await agent.submit(rollouts).all()
            return [reward for one in groups for reward in one.rewards]

    return clock.run(run())


def cheap(costs: float = 0.01) -> Member:
    return Member(lambda rollout: float(rollout.response), cost_usd=costs)


def dear(score: float = 1.0) -> Member:
    return Member(lambda rollout: score, cost_usd=1.0)


def test_a_certain_score_stays_and_an_uncertain_one_is_checked() -> None:
    then = dear()
    rewards = judged(
        Escalation(first=cheap(), then=then, between=(0.4, 0.6), audit_share=0.0), group("0", "0.1", "0.5", "1")
    )
    assert [reward.value for reward in rewards] == [0.0, 0.1, 1.0, 1.0]
    assert [reward.extras["decided_by"] for reward in rewards] == ["first", "first", "then", "first"]
    assert [reward.components["asked"] for reward in rewards] == [0.0, 0.0, 1.0, 0.0]
    assert then.asked == ["0.5"]
    assert sum(reward.cost_usd for reward in rewards) == pytest.approx(1.04)


def test_a_score_close_to_the_groups_mean_could_change_the_sign_of_its_advantage() -> None:
    then = dear()
    judged(Escalation(first=cheap(), then=then, margin=0.1, audit_share=0.0, share=1.0), group("0", "0.45", "0.5", "1"))
    assert sorted(then.asked) == ["0.45", "0.5"]


def test_a_jury_that_disagrees_sends_its_answer_on() -> None:
    def says(rollout: rf.Rollout) -> rf.Reward:
        return rf.Reward(value=0.9, components={"agreement": float(rollout.response)})

    then = dear()
    judged(Escalation(first=Member(says), then=then, agreement=0.5, share=1.0, audit_share=0.0), group("0.2", "0.8"))
    assert then.asked == ["0.2"]


def test_the_budget_holds_and_the_unchecked_are_corrected_by_what_was_found() -> None:
    then = dear(0.0)
    rewards = judged(
        Escalation(first=cheap(), then=then, between=(0.5, 1.0), share=0.25, audit_share=0.0),
        group("0.6", "0.6", "0.6", "0.6", "0.6", "0.6", "0.1", "0.1"),
    )
    assert len(then.asked) == 2
    by = [reward.extras["decided_by"] for reward in rewards]
    assert (by.count("then"), by.count("corrected"), by.count("first")) == (2, 4, 2)
    assert [reward.value for reward in rewards[:6]] == pytest.approx([0.0] * 6)
    assert [reward.value for reward in rewards[6:]] == [0.1, 0.1]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_a_share_holds_in_the_mean_also_of_groups_that_are_too_small_for_it(size: int) -> None:
    then = dear()
    escalation = Escalation(first=cheap(), then=then, between=(0.0, 1.0), audit_share=0.0)
    rollouts = [one for i in range(500) for one in group(*["0.5"] * size, group_id=str(i))]
    rewards = judged(escalation, rollouts)
    asked = [sum(one.components["asked"] or 0.0 for one in rewards[i : i + size]) for i in range(0, len(rewards), size)]
    assert statistics.fmean(asked) / size == pytest.approx(0.3, abs=0.05)
    assert set(asked) == {math.floor(0.3 * size), math.ceil(0.3 * size)}
    assert [one.extras for one in judged(escalation, rollouts)] == [one.extras for one in rewards]
    other = Escalation(first=cheap(), then=dear(), between=(0.0, 1.0), audit_share=0.0, seed=1)
    assert [one.extras for one in judged(other, rollouts)] != [one.extras for one in rewards]


def test_an_uncertain_answer_of_a_group_in_which_nobody_asked_stays_as_the_cheap_judge_said() -> None:
    escalation = Escalation(first=cheap(), then=dear(), between=(0.0, 1.0), share=0.0, audit_share=0.0)
    rewards = judged(escalation, group("0.5", "1"))
    assert [(one.value, one.extras["decided_by"]) for one in rewards] == [(0.5, "first"), (1.0, "first")]


def test_an_audited_group_asks_all_and_reports_the_change_of_its_advantages() -> None:
    then = dear(0.0)
    then.says = lambda rollout: 1.0 - float(rollout.response)
    rewards = judged(
        Escalation(first=cheap(), then=then, between=(2.0, 3.0), share=0.5, audit_share=1.0), group("0", "0", "1", "1")
    )
    assert len(then.asked) == 4
    assert [reward.value for reward in rewards] == [0.0, 0.0, 1.0, 1.0], "an audit changes no verdict"
    assert all(reward.components["advantage_change"] == 2.0 for reward in rewards)
    assert rewards[0].extras["audited_score"] == 1.0


def test_about_the_set_share_of_groups_is_audited_and_always_the_same() -> None:
    escalation = Escalation(first=cheap(), then=dear(), between=(2.0, 3.0), audit_share=0.2)
    rollouts = [one for i in range(300) for one in group("0", "1", group_id=str(i))]
    first, again = (judged(escalation, rollouts) for _ in range(2))
    audited = [reward for reward in first if "advantage_change" in reward.components]
    assert 0.12 < len(audited) / len(rollouts) < 0.28
    assert [reward.extras for reward in first] == [reward.extras for reward in again]


def test_verdicts_that_were_paid_for_survive_a_failure_of_the_dear_judge() -> None:
    first, then = cheap(), dear()
    then.fails = 1
    rewards = judged(Escalation(first=first, then=then, between=(0.0, 1.0), share=1.0), group("0", "1"))
    assert [reward.value for reward in rewards] == [1.0, 1.0]
    assert (len(first.asked), len(then.asked)) == (2, 2)


def test_an_answer_that_the_cheap_judge_cannot_read_is_the_first_to_be_asked() -> None:
    def says(rollout: rf.Rollout) -> float:
        if rollout.response == "x":
            raise rf.Unparsable("no score")
        return float(rollout.response)

    first, then = Member(says), dear(0.75)
    rewards = judged(
        Escalation(first=first, then=then, between=(0.0, 1.0), share=0.5, audit_share=0.0),
        group("0.5", "0.5", "x", "0.5"),
    )
    assert [reward.extras["decided_by"] for reward in rewards].count("then") == 2
    assert (rewards[2].value, rewards[2].components["first"]) == (0.75, None)
    assert all(reward.value == 0.75 for reward in rewards)  # the unchecked ones are corrected by 0.25
    assert first.asked.count("x") == 1


def test_more_unread_answers_than_the_budget_allows_are_asked_of_the_cheap_judge_again() -> None:
    unread = {"0.1": 1, "0.2": 1, "0.3": 1}

    def says(rollout: rf.Rollout) -> float:
        if unread.get(rollout.response, 0):
            unread[rollout.response] -= 1
            raise rf.Unparsable("no score")
        return float(rollout.response)

    first, then = Member(says), dear()
    rewards = judged(
        Escalation(first=first, then=then, between=(2.0, 3.0), share=0.5, audit_share=0.0),
        group("0.1", "0.2", "0.3", "0.4"),
    )
    assert [reward.value for reward in rewards] == [0.1, 0.2, 0.3, 0.4]
    assert (len(first.asked), len(then.asked)) == (7, 0)


def test_bounds_and_estimates_cover_both_judges_and_identity_follows_them() -> None:
    escalation = Escalation(first=cheap(), then=dear(), margin=0.1, share=0.5)
    rollout = group("0")[0]
    assert escalation.cost_bound_usd(rollout) == pytest.approx(1.01)
    assert escalation.estimate_tokens(rollout) == 150
    assert escalation.price_problem() is None

    def identity(**settings: float) -> str:
        built = Escalation(first=cheap(), then=dear(), **{"margin": 0.1, **settings})  # type: ignore[arg-type]
        return RewardSource.of(built).find().identity

    assert identity() == identity(parallel=2)
    assert len({identity(), identity(margin=0.2), identity(share=0.2), identity(seed=1)}) == 4


def test_an_escalation_is_written_in_yaml() -> None:
    judge = {"reward": "llm_judge", "model": "m", "base_urls": ["http://a"]}
    contents = {"reward": "escalation", "first": {"reward": "gsm8k"}, "then": judge, "between": [0.2, 0.8]}
    escalation = load_reward_contents(contents, folder=".").parts[0].reward
    assert isinstance(escalation, Escalation)
    assert (escalation.between, escalation.share) == ((0.2, 0.8), 0.3)


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"margin": None}, "one of between, margin and agreement"),
        ({"between": (0.6, 0.4)}, "between must be two numbers in order"),
        ({"margin": -0.1}, "margin must be at least 0"),
        ({"share": 1.5}, r"share must lie in \[0, 1\], got 1.5"),
        ({"audit_share": -1.0}, "audit_share must lie in"),
        ({"parallel": 0}, "parallel must be at least 1"),
    ],
)
def test_an_escalation_that_cannot_work_is_refused(settings: dict[str, object], rule: str) -> None:
    with pytest.raises(InvalidInput, match=rule):
        Escalation(**{"first": cheap(), "then": dear(), "margin": 0.1, **settings})  # type: ignore[arg-type]


def test_advantages_of_equal_scores_are_zero() -> None:
    assert normalised([0.5, 0.5]) == [0.0, 0.0]
    assert statistics.fmean(normalised([0.0, 0.5, 1.0])) == pytest.approx(0.0)
