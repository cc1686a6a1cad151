"""What every rule keeps: its names, its settings, and explanations that stay short."""

from __future__ import annotations

import pytest
from rollouts import rollout

from rewardflow.services.rules import GSM8K, RULES, Format, Math, Regex


def test_every_rule_has_a_name() -> None:
    assert set(RULES) == {"gsm8k", "math", "regex", "format", "length"}


@pytest.mark.parametrize(
    ("rule", "right", "wrong", "none"),
    [
        (GSM8K(right=3.0, wrong=-1.0, unanswered=-2.0), "#### 42", "#### 43", "no idea"),
        (Math(right=3.0, wrong=-1.0, unanswered=-2.0), r"\boxed{42}", r"\boxed{43}", "no idea"),
        (Regex(answer="is ([0-9]+)", right=3.0, wrong=-1.0, unanswered=-2.0), "is 42", "is 43", "no idea"),
    ],
)
def test_each_outcome_is_worth_what_the_settings_say(
    rule: GSM8K | Math | Regex, right: str, wrong: str, none: str
) -> None:
    values = [rule.compute_score(rollout(response, "42")).value for response in (right, wrong, none)]
    assert values == [3.0, -1.0, -2.0]


def test_a_form_is_worth_what_the_settings_say() -> None:
    rule = Format(tags="answer", right=3.0, wrong=-1.0)
    values = [rule.compute_score(rollout(response)).value for response in ("<answer>42</answer>", "42")]
    assert values == [3.0, -1.0]


def test_an_explanation_stays_short_whatever_the_answer() -> None:
    explanation = GSM8K().compute_score(rollout("#### " + "9" * 100_000, "1")).explanation
    assert explanation is not None
    assert len(explanation) < 150
