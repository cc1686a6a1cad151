"""What patterns find, what they compare, and which are refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollouts import rollout, singles
from warm_rules import warm

import rewardflow as rf
from rewardflow.errors import InvalidInput
from rewardflow.reward.code.abandonment import Abandonment, in_call
from rewardflow.services.rules import Regex


def test_a_pattern_that_must_be_there_and_one_that_must_not() -> None:
    rule = Regex(must=r"(?i)therefore", must_not=[r"as an AI"])
    assert rule.compute_score(rollout("Therefore 4.")).value == 1.0
    missing = rule.compute_score(rollout("It is 4."))
    assert (missing.value, missing.explanation) == (0.0, "nothing matches '(?i)therefore', which must be there")
    assert rule.compute_score(rollout("Therefore, as an AI, 4.")).value == 0.0


@pytest.mark.parametrize("pattern", [r"[A-D]", r"\(([A-D])\)", r"(x)?\((?P<answer>[A-D])\)"])
def test_the_last_match_is_compared_with_the_ground_truth(pattern: str) -> None:
    rule = Regex(answer=pattern)
    assert rule.compute_score(rollout("Not (A), it is (B).", "B")).value == 1.0
    assert rule.compute_score(rollout("Not (B), it is (A).", "B")).value == 0.0


def test_case_may_be_ignored_in_the_comparison() -> None:
    asked = rollout("answer: Paris ", "PARIS")
    assert Regex(answer=r"answer:(.*)").compute_score(asked).value == 0.0
    assert Regex(answer=r"answer:(.*)", ignore_case=True).compute_score(asked).value == 1.0


def test_a_regex_cannot_decide_without_a_match_or_a_truth() -> None:
    rule = Regex(answer=r"answer: (\w+)", unanswered=-1.0)
    assert rule.decide(rollout("no", "yes")) is None
    assert rule.decide(rollout("answer: yes")) is None
    assert rule.compute_score(rollout("no", "yes")).value == -1.0
    with pytest.raises(InvalidInput, match="ground truth"):
        rule.compute_score(rollout("answer: yes"))


def test_a_response_that_makes_a_pattern_run_away_fails_alone() -> None:
    """Real time: the pattern holds its interpreter until it is killed."""
    rule = warm(Regex(must=r"(\w+\s?)+$"), rollout("fine"))
    responses = ["fine", "a" * 34 + "!", *(f"word {number}" for number in range(30))]
    rewards = rf.score(singles(*responses), rule, timeout_s=5.0, max_attempts=1)
    assert [reward.value for reward in rewards if reward is not rewards[1]] == [1.0] * 31
    assert rewards[1].kind == "timeout"
    assert "the rule regex did not end and was killed" in (rewards[1].error or "")


@given(
    response=st.text(st.sampled_from("aBя٣ \u00a0#4.,\n\ud800"), max_size=40),
    truth=st.one_of(st.none(), st.text(max_size=3), st.integers()),
)
@settings(max_examples=50, deadline=None)
def test_a_rule_says_the_same_in_a_process_as_in_the_callers_thread(response: str, truth: object) -> None:
    rule = Regex(must=r"\w", must_not=r"BB", answer=r"#\s*(?P<answer>[\d.,]+)")
    with in_call(Abandonment()):
        in_process = rule.decide(rollout(response, truth))
    assert in_process == rule.decide(rollout(response, truth))


@pytest.fixture(autouse=True, scope="module")
def no_process_stays() -> Iterator[None]:
    yield
    Regex(must="x").close()


def test_a_broken_pattern_is_refused_when_the_rule_is_built() -> None:
    with pytest.raises(InvalidInput, match="regular expression"):
        Regex(must="(")
    with pytest.raises(InvalidInput, match="at least one"):
        Regex()
