"""A jury combines votes, asks for more only where the first disagree, and never pays for a vote twice."""

from __future__ import annotations

import pytest
from judging_members import Member
from rollouts import singles
from scoring import score

import rewardflow as rf
from rewardflow import clock
from rewardflow.errors import InvalidInput
from rewardflow.reward.code.source import RewardSource
from rewardflow.services.judges.llm_judge import LLMJudge
from rewardflow.services.jury import Jury
from rewardflow.services.reward_file import load_reward_contents


def constant(value: float) -> Member:
    return Member(lambda rollout: value)


def verdict(jury: Jury) -> rf.Reward:
    async def run() -> rf.Reward:
        async with rf.RewardAgent(jury, backoff_s=0.1) as agent:
            (group,) = await agent.submit(singles("x")).all()
            return group.rewards[0]

    return clock.run(run())


@pytest.mark.parametrize(
    ("combine", "votes", "value"),
    [
        ("mean", (0.0, 0.5, 1.0, 1.0), 0.625),
        ("median", (0.0, 0.0, 0.25), 0.0),
        ("majority", (0.5, 0.75, 0.0), 1.0),
        ("majority", (0.25, 0.75, 0.0), 0.0),
        ("majority", (0.0, 1.0), 0.5),
    ],
)
def test_votes_are_combined_as_asked_for(combine: str, votes: tuple[float, ...], value: float) -> None:
    reward = verdict(Jury(judges=[constant(vote) for vote in votes], combine=combine))  # type: ignore[arg-type]
    assert reward.value == value
    assert reward.extras["votes"] == list(votes)
    assert reward.cost_usd == len(votes)
    assert "vote 2: " in str(reward.explanation)


def test_a_verdict_names_every_model_that_voted() -> None:
    def says(model: str | list[str]) -> Member:
        return Member(lambda rollout: rf.Reward(value=0.5, extras={"answered_by": model}))

    assert verdict(Jury(judges=[says("b"), says("a"), says("b"), says(["a", "c"])])).extras["answered_by"] == [*"abc"]
    assert "answered_by" not in verdict(Jury(judges=[constant(0.5)])).extras


def test_agreement_is_a_component_so_that_every_step_records_it() -> None:
    agreed = verdict(Jury(judges=[constant(0.5), constant(0.5)])).components
    assert (agreed["agreement"], agreed["votes"]) == (1.0, 2.0)
    split = verdict(Jury(judges=[constant(0.0), constant(1.0)])).components
    assert (split["agreement"], split["judge_1"], split["judge_2"]) == (0.0, 0.0, 1.0)


def test_further_votes_are_asked_only_where_the_first_disagree() -> None:
    calm = [constant(0.5), constant(0.6), constant(0.0)]
    assert verdict(Jury(judges=calm, first=2, agree_within=0.2)).extras["votes"] == [0.5, 0.6]
    assert [len(member.asked) for member in calm] == [1, 1, 0]
    heated = [constant(0.5), constant(1.0), constant(0.0)]
    assert verdict(Jury(judges=heated, first=2, agree_within=0.2)).extras["votes"] == [0.5, 1.0, 0.0]


def test_samples_of_one_judge_are_asked_for_one_by_one() -> None:
    answers = iter([0.0, 1.0, 0.5])
    judge = Member(lambda rollout: next(answers))
    assert verdict(Jury(judges=[judge], samples=3, parallel=1)).value == 0.5
    assert len(judge.asked) == 3


def test_a_vote_that_was_paid_for_is_not_asked_again_after_a_failure() -> None:
    steady, shaky = constant(1.0), Member(lambda rollout: 0.0, fails=2)
    reward = verdict(Jury(judges=[steady, shaky]))
    assert (reward.value, reward.attempts, reward.cost_usd) == (0.5, 3, 2.0)
    assert len(steady.asked) == 1


def test_a_vote_that_stays_away_fails_the_verdict() -> None:
    reward = verdict(Jury(judges=[constant(1.0), Member(lambda rollout: 0.0, fails=99)]))
    assert (reward.value, reward.kind) == (None, "service")
    unreadable = verdict(Jury(judges=[Member(lambda rollout: rf.Reward(kind="unparsable", error="hm"))]))
    assert (unreadable.kind, unreadable.error) == ("unparsable", "Unparsable: hm")


def test_a_rule_may_vote_beside_a_judge() -> None:
    rewards = score(
        Jury(judges=["rewardflow.services.rules:GSM8K", constant(0.0)]), *singles("#### 4", ground_truth="4")
    )
    assert [reward.value for reward in rewards] == [0.5]


def test_members_are_checked_priced_and_closed() -> None:
    members = [constant(1.0), constant(0.0)]
    jury = Jury(judges=members, samples=2)
    assert verdict(jury).extras["votes"] == [1.0, 0.0, 1.0, 0.0]
    assert all(member.is_checked and member.is_closed for member in members)
    rollout = singles("x")[0]
    assert (jury.cost_bound_usd(rollout), jury.estimate_tokens(rollout), jury.price_problem()) == (4.0, 400, None)
    unpriced = Jury(judges=[constant(1.0), LLMJudge(model="m", base_urls=["http://127.0.0.1:9"])])
    assert unpriced.cost_bound_usd(rollout) is None
    assert "no price is known" in str(unpriced.price_problem())


def test_the_identity_follows_the_members_and_not_the_number_of_slots() -> None:
    def identity(version: str = "", **settings: int) -> str:
        return RewardSource.of(Jury(judges=[Member(float, version=version)], **settings)).find().identity

    assert identity() == identity(parallel=9)
    assert len({identity(), identity("b"), identity(samples=2)}) == 3


def test_a_jury_is_written_in_yaml() -> None:
    judge = {"reward": "llm_judge", "model": "m", "base_urls": ["http://a"], "sampling": {"temperature": 0.7}}
    contents = {"reward": "jury", "judges": [judge, {"reward": "gsm8k"}], "samples": 3, "first": 2, "combine": "median"}
    jury = load_reward_contents(contents, folder=".").parts[0].reward
    assert isinstance(jury, Jury)
    assert (jury.num_votes, isinstance(jury.judges[0], LLMJudge)) == (6, True)


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"judges": []}, "a list of at least one judge"),
        ({"samples": 0}, "samples must be at least 1"),
        ({"first": 1}, "first must be from 2 to the number of votes, got first=1, votes=2"),
        ({"first": 3}, "got first=3, votes=2"),
        ({"combine": "best"}, "mean, median, majority"),
        ({"agree_within": -1.0}, "agree_within must be at least 0"),
        (
            {"judges": [LLMJudge(model="m", base_urls=["http://a"])], "samples": 2},
            "temperature above 0 and no seed, got temperature=0.0",
        ),
        ({"judges": ["rewardflow.services.judges.listwise:ListwiseJudge"]}, "."),
    ],
)
def test_a_jury_that_cannot_work_is_refused(settings: dict[str, object], rule: str) -> None:
    with pytest.raises((InvalidInput, rf.RewardLoadError), match=rule):
        Jury(**{"judges": [constant(0.0), constant(1.0)], **settings})  # type: ignore[arg-type]


def test_no_judge_sees_what_another_one_writes_into_the_values() -> None:
    seen: list[list[int]] = []

    class Decider:
        """Looks twice: before the call, and in it."""

        def decide_locally(self, rollout: rf.Rollout) -> None:
            write(rollout)

        async def compute_score(self, rollout: rf.Rollout) -> float:
            return write(rollout)

    def write(rollout: rf.Rollout) -> float:
        seen.append(list(rollout.extra_info["steps"]))
        rollout.extra_info["steps"].append(9)
        return 0.5

    async def ask(rollout: rf.Rollout) -> float:
        return write(rollout)

    rollouts = [rf.Rollout(group_id="g", response="a", extra_info={"steps": [1]})]
    (verdict,) = score(Jury(judges=[ask, Decider(), ask], parallel=1), rollouts)
    assert verdict.value == 0.5
    assert seen == [[1]] * 4
    assert rollouts[0].extra_info["steps"] == [1]
