"""What group judges show: in an order that nobody chose, inside fences."""

from __future__ import annotations

import asyncio
import re
from collections import Counter

import pytest
from group_judging import group

import rewardflow as rf
from rewardflow.errors import InvalidInput
from rewardflow.reward.code.contract import load_reward
from rewardflow.reward.code.source import RewardSource
from rewardflow.services.judges.group_prompt import SYSTEM, check_several, show, shuffled, system_prompt
from rewardflow.services.judges.listwise import ListwiseJudge
from rewardflow.services.judges.llm_judge import LLMJudge
from rewardflow.services.judges.pairwise import PairwiseJudge

GroupJudge = type[ListwiseJudge] | type[PairwiseJudge]


def test_every_index_stands_first_about_as_often_as_any_other() -> None:
    first = Counter(
        shuffled([rf.Rollout(group_id=str(i), index=j, group_size=4, response="x") for j in range(4)], seed=1)[0]
        for i in range(2000)
    )
    assert all(400 < first[index] < 600 for index in range(4))


def test_the_order_depends_on_the_seed_and_the_group_alone() -> None:
    rollouts = group(*"abcdefgh")
    other = group(*"stuvwxyz")
    assert shuffled(rollouts, 0) == shuffled(other, 0)
    assert shuffled(rollouts, 0) != shuffled(rollouts, 1)
    assert shuffled(rollouts, 0) != shuffled(group(*"abcdefgh", group_id="r"), 0)


def test_everything_that_is_shown_stands_in_a_fence_of_its_own_in_the_order_that_was_drawn() -> None:
    prompt = show(group("3", "9"), [1, 0], ["ANSWER 1", "ANSWER 2"], 100)
    labels = re.findall(r"<<<(?!END)([A-Z0-9 ]+) ([0-9a-f]{16})>>>\n(.*)\n", prompt)
    assert [(label, text) for label, _, text in labels] == [
        ("QUESTION", "Biggest?"),
        ("REFERENCE", "9"),
        ("ANSWER 1", "9"),
        ("ANSWER 2", "3"),
    ]
    assert len({number for _, number, _ in labels}) == 4


def test_prompts_about_one_group_begin_with_the_same_question_and_reference() -> None:
    one, other = (show(group("3", "9"), order, ["FIRST", "SECOND"], 100) for order in ([0, 1], [1, 0]))
    assert one.partition("<<<FIRST ")[0] == other.partition("<<<FIRST ")[0]
    assert one != other


def test_a_system_prompt_of_the_users_own_stays_and_the_one_for_single_answers_does_not() -> None:
    assert system_prompt(LLMJudge(model="m", base_urls=["http://a"]), "Task.", "{}").startswith(SYSTEM)
    own = LLMJudge(model="m", base_urls=["http://a"], system="You edit poems.")
    assert system_prompt(own, "Task.", "{}").startswith("You edit poems.")


def test_one_answer_is_not_several() -> None:
    with pytest.raises(InvalidInput, match="2 or more, got 1"):
        check_several(group("3"))


@pytest.mark.parametrize("judge", [ListwiseJudge, PairwiseJudge])
def test_a_group_judge_sees_groups_and_forwards_what_the_agent_asks(judge: GroupJudge) -> None:
    inner = LLMJudge(model="m", base_urls=["http://a", "http://b"])
    loaded = load_reward(RewardSource.of(judge(judge=inner)))
    assert (loaded.unit, loaded.is_async, loaded.endpoints) == ("group", True, ("http://a", "http://b"))
    assert loaded.estimate_tokens is not None
    assert loaded.estimate_tokens(group("3", "9" * 400)[1]) > loaded.estimate_tokens(group("3", "9")[1]) > 0
    assert loaded.price_problem is not None
    assert loaded.price_problem() == inner.price_problem() is not None


@pytest.mark.parametrize("judge", [ListwiseJudge, PairwiseJudge])
def test_the_key_of_the_judge_behind_is_checked(judge: GroupJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY_X", raising=False)
    inner = LLMJudge(model="m", base_urls=["http://127.0.0.1:9"], api_key_env="JUDGE_KEY_X")
    with pytest.raises(InvalidInput, match="JUDGE_KEY_X"):
        asyncio.run(judge(judge=inner).check())
