"""What group judges show: in an order that nobody chose, inside one fence."""

from __future__ import annotations

import re
from collections import Counter

import pytest

import rewardflow as rf
from rewardflow.errors import InvalidInput
from rewardflow.reward.services.group_prompt import SYSTEM, check_several, show, shuffled, system_prompt
from rewardflow.reward.services.judge import LLMJudge


def group(*responses: str, group_id: str = "q") -> list[rf.Rollout]:
    return [
        rf.Rollout(
            group_id=group_id, index=i, group_size=len(responses), prompt="Biggest?", response=one, ground_truth="9"
        )
        for i, one in enumerate(responses)
    ]


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


def test_everything_that_is_shown_stands_in_one_fence_in_the_order_that_was_drawn() -> None:
    prompt = show(group("3", "9"), [1, 0], ["ANSWER 1", "ANSWER 2"], 100)
    labels = re.findall(r"<<<(?!END)([A-Z0-9 ]+) ([0-9a-f]{16})>>>\n(.*)\n", prompt)
    assert [(label, text) for label, _, text in labels] == [
        ("QUESTION", "Biggest?"),
        ("REFERENCE", "9"),
        ("ANSWER 1", "9"),
        ("ANSWER 2", "3"),
    ]
    assert len({nonce for _, nonce, _ in labels}) == 1


def test_a_system_prompt_of_the_users_own_stays_and_the_one_for_single_answers_does_not() -> None:
    assert system_prompt(LLMJudge(model="m", base_urls=["http://a"]), "Task.", "{}").startswith(SYSTEM)
    own = LLMJudge(model="m", base_urls=["http://a"], system="You edit poems.")
    assert system_prompt(own, "Task.", "{}").startswith("You edit poems.")


def test_one_answer_is_not_several() -> None:
    with pytest.raises(InvalidInput, match="2 or more, got 1"):
        check_several(group("3"))
