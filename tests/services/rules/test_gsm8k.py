"""The number that a response ends in, against the true one."""

from __future__ import annotations

from typing import Any

import pytest
from rollouts import rollout

import rewardflow as rf
from rewardflow.errors import InvalidInput
from rewardflow.services.rules import GSM8K

SOLUTION = (
    "Mira bakes 14 trays of 12 rolls, which is 14*12=<<14*12=168>>168 rolls.\n"
    "She gives away 48, so 168-48=<<168-48=120>>120 are left.\n#### 120"
)


@pytest.mark.parametrize("truth", ["120", "120.0", 120, 120.0, SOLUTION, "#### 120", " 120 "])
def test_a_ground_truth_is_a_number_or_a_whole_solution(truth: object) -> None:
    assert GSM8K().compute_score(rollout("So 168 - 48 = 120.\n#### 120", truth)).value == 1.0


def test_numbers_are_compared_as_numbers() -> None:
    assert GSM8K().compute_score(rollout("#### 18.00", "18")).value == 1.0
    assert GSM8K().compute_score(rollout("#### 18.01", "18")).value == 0.0


def test_strict_and_flexible_differ_in_what_counts_as_an_answer() -> None:
    unmarked = rollout("The answer is 120.", "120")
    assert GSM8K(unanswered=-0.5).compute_score(unmarked).value == -0.5
    assert GSM8K(method="flexible").compute_score(unmarked).value == 1.0


def test_gsm8k_decides_only_where_it_found_an_answer_and_a_truth() -> None:
    assert GSM8K().decide(rollout("The answer is 120.", "120")) is None
    assert GSM8K().decide(rollout("#### 120", None)) is None
    wrong = GSM8K().decide(rollout("#### 119", "120"))
    assert wrong is not None
    assert (wrong.value, wrong.explanation) == (0.0, "answered 119, but the truth is 120")


@pytest.mark.parametrize("truth", [None, "", "many", True, [120], float("nan"), "inf"])
def test_a_ground_truth_that_is_no_number_is_an_error_not_a_zero(truth: object) -> None:
    with pytest.raises(InvalidInput, match="ground truth"):
        GSM8K().compute_score(rollout("#### 120", truth))


@pytest.mark.parametrize("method", ["lenient", "", None])
def test_an_unknown_method_is_refused(method: Any) -> None:
    with pytest.raises(InvalidInput, match="strict, flexible"):
        GSM8K(method=method)


# -- on the contract --


def test_a_rule_is_a_reward_by_name_and_as_an_object() -> None:
    answers = [rollout("#### 120", SOLUTION)]
    by_name = rf.score(answers, "rewardflow.services.rules:GSM8K", reward_kwargs={"method": "strict", "right": 2.0})
    assert [reward.value for reward in by_name] == [2.0]
    assert rf.score(answers, GSM8K())[0].explanation == "answered 120, as the truth is 120"


def test_a_ground_truth_that_a_rule_cannot_read_fails_the_verdict() -> None:
    reward = rf.score([rollout("#### 120", "many")], GSM8K())[0]
    assert (reward.status, reward.value, reward.kind) == ("failed", None, "user_error")
