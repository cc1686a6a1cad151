"""Expressions are compared by what they mean."""

from __future__ import annotations

import sys
import threading

import pytest
from rollouts import rollout, singles
from warm_rules import warm

import rewardflow as rf
from rewardflow.errors import InvalidInput
from rewardflow.services.rules import Math


@pytest.mark.parametrize(
    ("truth", "response", "value"),
    [
        (r"\frac{1}{2}", r"so it is \boxed{0.5}", 1.0),
        (r"$\frac{1}{2}$", r"so it is $\frac{2}{4}$", 1.0),
        ("x^2+1", r"\boxed{1+x^2}", 1.0),
        ("(1, 2)", r"\boxed{(1,2)}", 1.0),
        (r"3\pi", r"\boxed{3}", 0.0),
        ("8", r"\boxed{4^{1.5}}", 1.0),
        (r"\sqrt{x}", r"\boxed{x^{0.5}}", 1.0),
        (r"2^{\frac{t}{10}}", r"\boxed{2^{0.1t}}", 1.0),
        (42, "The answer is 42", 1.0),
        ("42", "I do not know", 0.0),
    ],
)
def test_math_compares_expressions(truth: object, response: str, value: float) -> None:
    assert Math().compute_score(rollout(response, truth)).value == value


def test_math_works_in_threads() -> None:
    values: list[float | None] = []

    def judge(number: int) -> None:
        reward = Math().compute_score(rollout(rf"\boxed{{\frac{{{number}}}{{2}}}}", str(number / 2)))
        values.append(reward.value)

    threads = [threading.Thread(target=judge, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == [1.0] * 16


def test_math_cannot_decide_without_an_answer_or_a_truth() -> None:
    assert Math().decide(rollout("no idea", "42")) is None
    assert Math().decide(rollout("42", None)) is None
    with pytest.raises(InvalidInput, match="ground truth"):
        Math().compute_score(rollout("42", None))


HUGE = [
    *(r"9^{9999999}", r"9^{9^{9}}", r"10^{-9999999}", r"(9^{99})^{99999}", r"9999999!"),
    *(r"9.5^{9^{9}}", r"9.5^{9.5^{9.5}}", r"0.1^{999999999}", r"e^{9999999}", r"\cosh(9999999)"),
]


@pytest.mark.parametrize("huge", HUGE)
def test_a_power_too_large_to_compute_is_never_computed(huge: str) -> None:
    reward = Math(unanswered=-1.0).compute_score(rollout(rf"\boxed{{{huge}}}", "5"))
    assert (reward.value, "too large to compare" in (reward.explanation or "")) == (-1.0, True)
    assert Math().decide(rollout(rf"\boxed{{{huge}}}", "5")) is None
    assert Math().compute_score(rollout(rf"\boxed{{{huge}}}", huge)).value == 1.0


@pytest.mark.parametrize("odd", [r"\boxed{" * 100_000, "(" * 100_000, "9" * 100_000, r"\boxed{" + "(" * 900 + "1"])
def test_a_response_nested_without_end_gets_an_ordinary_verdict(odd: str) -> None:
    assert Math(unanswered=-1.0).compute_score(rollout(odd, "5")).value in (-1.0, 0.0)


def test_an_expression_that_cannot_be_finished_fails_alone_and_frees_its_process() -> None:
    """Real time: sympy multiplies whole numbers until it is killed."""
    endless = r"\boxed{\binom{99999999}{40000000}}"
    rollouts = singles(r"\boxed{5}", endless, r"\boxed{6}", ground_truth="5")
    rewards = rf.score(rollouts, warm(Math(), rollouts[0]), timeout_s=6.0, max_attempts=1)
    assert [reward.value for reward in rewards] == [1.0, None, 0.0]
    assert rewards[1].kind == "timeout"
    assert "the rule math did not end and was killed" in (rewards[1].error or "")


def test_a_missing_math_verify_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)  # how Python marks what cannot be imported
    with pytest.raises(InvalidInput, match=r"pip install .*\[math\]"):
        Math().compute_score(rollout("42", "42"))
