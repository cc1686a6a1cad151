"""Rules: what they read, what they refuse, and that they never guess."""

from __future__ import annotations

import sys
import threading
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rewardflow as rf
from rewardflow.errors import InvalidInput
from rewardflow.reward.services.rules import (
    GSM8K,
    RULES,
    Format,
    Length,
    Math,
    Regex,
    read_last_number,
    read_marked_number,
    read_number_answer,
)


def rollout(response: str, ground_truth: Any = None, **fields: Any) -> rf.Rollout:
    return rf.Rollout(group_id="q", response=response, ground_truth=ground_truth, **fields)


SOLUTION = (
    "Mira bakes 14 trays of 12 rolls, which is 14*12=<<14*12=168>>168 rolls.\n"
    "She gives away 48, so 168-48=<<168-48=120>>120 are left.\n#### 120"
)

# -- GSM8K --


@pytest.mark.parametrize("truth", ["120", "120.0", 120, 120.0, SOLUTION, "#### 120", " 120 "])
def test_a_ground_truth_is_a_number_or_a_whole_solution(truth: object) -> None:
    assert GSM8K().compute_score(rollout("So 168 - 48 = 120.\n#### 120", truth)).value == 1.0


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("#### 1,200", "1200"),
        ("#### $1,200.50", "1200.50"),
        ("#### -7", "-7"),
        ("#### -$7", "-7"),
        ("#### $-7", "-7"),
        ("#### 35%", "35"),
        ("#### 18.", "18"),
        ("####18", "18"),
        ("#### 5\nNo, wait.\n#### 6", "6"),
        ("#### 5 or ####", "5"),
        ("#### \N{MINUS SIGN}9", "-9"),
    ],
)
def test_strict_reads_the_last_marked_number(written: str, number: str) -> None:
    assert read_marked_number(written) == Decimal(number)


@pytest.mark.parametrize("written", ["", "120", "### 120", "#### about 120", "#### 1.2.3", "#### .,.", "#### ,"])
def test_strict_reads_nothing_without_a_marked_number(written: str) -> None:
    assert read_marked_number(written) is None


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("She pays $1,200.50 in all.", "1200.50"),
        ("That makes 1,00,000 rupees", "100000"),
        ("between 3,4", "4"),
        ("on pages 5-7", "7"),
        ("f(2)-3", "3"),
        ("it falls to -3", "-3"),
        ("a loss of -$4", "-4"),
        ("so it is 35%.", "35"),
        ("half of it: .5", "0.5"),
        ("first 10, then 12", "12"),
        ("12.", "12"),
        ("It is \N{MINUS SIGN}8 degrees", "-8"),
    ],
)
def test_flexible_reads_the_last_number(written: str, number: str) -> None:
    assert read_last_number(written) == Decimal(number)


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


@given(st.integers(-(10**12), 10**12), st.text(alphabet=st.characters(exclude_characters="#"), max_size=60))
def test_any_whole_number_is_read_back_however_it_is_written(number: int, before: str) -> None:
    for written in (str(number), f"{number:,}", f"{number:,}.00", f"${number:,}", f"{number:,}."):
        assert read_marked_number(f"{before}\n#### {written}") == number
        assert read_last_number(f"{before}\nIt is {written}") == number


@given(st.text())
def test_no_text_makes_the_readers_raise(text: str) -> None:
    for read in (read_marked_number, read_last_number, read_number_answer):
        number = read(text)
        assert number is None or number.is_finite()


@pytest.mark.parametrize("piece", ["1,22", "-", "$", ".1", "#", "#### ", "9", "1,", "####1"])
def test_long_hostile_text_is_read_in_linear_time(piece: str) -> None:
    text = piece * 200_000  # quadratic work here would run into the test's time limit
    read_marked_number(text)
    read_last_number(text)


def test_an_explanation_stays_short_whatever_the_answer() -> None:
    explanation = GSM8K().compute_score(rollout("#### " + "9" * 100_000, "1")).explanation
    assert explanation is not None
    assert len(explanation) < 150


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### 42\n#### ...", 42),
        ("#### 42\n#### none", 42),
        ("#### 1/2", None),
        ("#### 12/5", None),
        ("#### 1 / 2", None),
        ("#### 10^3", None),
        ("#### 3:30", None),
        ("#### 2 * 3", None),
        ("#### 1.2.3", None),
        (r"#### \$42", 42),
        (r"#### -\$42", -42),
        ("#### **42**", 42),
        ("####**$42**", 42),
        ("#### `42`", 42),
        ("#### 42.", 42),
        ("#### 42 / 7 days", None),
        ("#### 42 apples / week", 42),
        ("#### 2.5e3", 2500),
        ("#### 2.5e3000", None),
        ("#### 1 000 000", 1000000),
        ("#### 1 000 00", 1),
    ],
)
def test_what_stands_after_the_mark_is_read_whole_or_not_at_all(text: str, number: int | None) -> None:
    assert read_marked_number(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so 2.5e3", "2500"),
        ("so 2.5E-1 m", "0.25"),
        ("so 1e3.", "1000"),
        ("so 1 000 000", "1000000"),
        ("so -$1 000 000.50", "-1000000.50"),
        ("so 12\u00a0345 apples", "12345"),
        ("of 10 20", "20"),
        ("of 1000 200", "200"),
        ("of 1 000 00", "0"),
        ("of 1 0000", "0"),
    ],
)
def test_exponents_and_groups_of_three_digits_belong_to_the_last_number(text: str, number: str) -> None:
    assert read_last_number(text) == Decimal(number)


# -- mathematics --


@pytest.mark.parametrize(
    ("truth", "response", "value"),
    [
        (r"\frac{1}{2}", r"so it is \boxed{0.5}", 1.0),
        (r"$\frac{1}{2}$", r"so it is $\frac{2}{4}$", 1.0),
        ("x^2+1", r"\boxed{1+x^2}", 1.0),
        ("(1, 2)", r"\boxed{(1,2)}", 1.0),
        (r"3\pi", r"\boxed{3}", 0.0),
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


def test_a_missing_math_verify_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)  # how Python marks what cannot be imported
    with pytest.raises(InvalidInput, match=r"rewardflow\[math\]"):
        Math().compute_score(rollout("42", "42"))


# -- patterns --


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


def test_a_broken_pattern_is_refused_when_the_rule_is_built() -> None:
    with pytest.raises(InvalidInput, match="regular expression"):
        Regex(must="(")
    with pytest.raises(InvalidInput, match="at least one"):
        Regex()


# -- form --


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        ("<think>a</think><answer>b</answer>", None),
        (" <think>a</think>\n<answer>b</answer>\n", None),
        ("<answer>b</answer>", "<think> must be there once, found 0 times"),
        ("<think>a<answer>b</answer>", "</think> must be there once, found 0 times"),
        ("<think>a</think><think>a</think><answer>b</answer>", "<think> must be there once, found 2 times"),
        ("<answer>b</answer><think>a</think>", "text before <think>: '<answer>b</answer>'"),
        ("<think>a<answer>b</answer></think>", "<answer> must come after what is before it in think, answer"),
        ("</think>a<think><answer>b</answer>", "</think> comes before <think>"),
        ("<think> </think><answer>b</answer>", "<think> is empty"),
        ("Sure! <think>a</think><answer>b</answer>", "text before <think>: 'Sure!'"),
        ("<think>a</think><answer>b</answer> Bye", "text after </answer>: 'Bye'"),
    ],
)
def test_tags_must_be_there_once_and_in_order(response: str, problem: str | None) -> None:
    reward = Format().compute_score(rollout(response))
    assert reward.value == (1.0 if problem is None else 0.0)
    assert reward.explanation == (problem or "think, answer: each once, in order")


def test_text_outside_and_a_tag_that_the_prompt_opened_may_be_allowed() -> None:
    assert Format(text_outside=True).compute_score(rollout("Hm <think>a</think> so <answer>b</answer>!")).value == 1.0
    opened = rollout("a</think><answer>b</answer>")
    assert Format().compute_score(opened).value == 0.0
    assert Format(opened_in_prompt=True).compute_score(opened).value == 1.0


@pytest.mark.parametrize("tags", [(), ("a", "a"), ("<a>",), ("",)])
def test_tags_are_distinct_names(tags: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput, match="tags must be"):
        Format(tags=tags)


@given(st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "x"]), max_size=8))
def test_only_one_order_of_tags_is_well_formed(pieces: list[str]) -> None:
    tags = "".join(piece for piece in pieces if piece != "x")
    reward = Format(text_outside=True).compute_score(rollout("".join(pieces)))
    assert reward.value == 0.0 or tags == "<think></think><answer></answer>"


# -- length --


@pytest.mark.parametrize(("length", "value"), [(0, 0.0), (60, 0.0), (70, -0.25), (80, -0.5), (100, -1.0), (400, -1.0)])
def test_overlong_responses_are_punished_softly_and_then_fully(length: int, value: float) -> None:
    assert Length(limit=100, buffer=40).compute_score(rollout("x" * length)).value == value


def test_length_is_counted_in_characters_words_or_tokens() -> None:
    asked = rollout("one two three", token_ids=[5, 6, 7, 8], response_mask=[1, 0, 1, 1])
    lengths = [Length(limit=9, buffer=9, unit=unit).compute_score(asked).extras for unit in ("characters", "words")]
    assert lengths == [{"length": 13}, {"length": 3}]
    assert Length(limit=9, buffer=9, unit="tokens").compute_score(asked).extras == {"length": 3}
    unmasked = rollout("one", token_ids=[5, 6])
    assert Length(limit=9, buffer=9, unit="tokens").compute_score(unmasked).extras == {"length": 2}
    with pytest.raises(InvalidInput, match="token_ids"):
        Length(limit=9, buffer=9, unit="tokens").compute_score(rollout("one"))


@given(st.integers(0, 300), st.integers(1, 100), st.integers(0, 100))
def test_the_punishment_never_leaves_its_range_and_grows_with_length(length: int, buffer: int, more: int) -> None:
    rule = Length(limit=100, buffer=buffer, penalty=2.0)
    shorter, longer = (rule.compute_score(rollout("x" * size)).value for size in (length, length + more))
    assert shorter is not None
    assert longer is not None
    assert -2.0 <= longer <= shorter <= 0.0


@pytest.mark.parametrize("fields", [{"limit": 5, "buffer": 6}, {"limit": 5, "buffer": 0}, {"unit": "bytes"}])
def test_settings_that_make_no_sense_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Length(**{"limit": 5, "buffer": 5, **fields})


# -- on the contract --


def test_a_rule_is_a_reward_by_name_and_as_an_object() -> None:
    answers = [rollout("#### 120", SOLUTION)]
    by_name = rf.score(
        answers, "rewardflow.reward.services.rules:GSM8K", reward_kwargs={"method": "strict", "right": 2.0}
    )
    assert [reward.value for reward in by_name] == [2.0]
    assert rf.score(answers, GSM8K())[0].explanation == "answered 120, as the truth is 120"


def test_a_ground_truth_that_a_rule_cannot_read_fails_the_verdict() -> None:
    reward = rf.score([rollout("#### 120", "many")], GSM8K())[0]
    assert (reward.status, reward.value, reward.kind) == ("failed", None, "user_error")


def test_every_rule_has_a_name() -> None:
    assert set(RULES) == {"gsm8k", "math", "regex", "format", "length"}


@pytest.mark.parametrize("method", ["lenient", "", None])
def test_an_unknown_method_is_refused(method: Any) -> None:
    with pytest.raises(InvalidInput, match="strict, flexible"):
        GSM8K(method=method)
