"""A rubric asks for exactly what it can read."""

from __future__ import annotations

from typing import Any

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.services.judges.rubric import Criterion, Rubric

RUBRIC = Rubric.of(
    [
        Criterion("correctness", "is it right?", weight=3.0),
        {"name": "style", "low": 1, "high": 5},
        {"name": "risk", "low": -1.0, "high": 1.0, "weight": 0},
    ]
)


def test_the_value_is_the_weighted_mean_of_scores_scaled_from_their_ends() -> None:
    normalised = RUBRIC.normalised({"correctness": 5.0, "style": 5.0, "risk": 0.0})
    assert normalised == {"correctness": 0.5, "style": 1.0, "risk": 0.5}
    assert RUBRIC.value(normalised) == (3 * 0.5 + 1.0) / 4


def test_the_schema_is_strict_and_lists_the_steps_of_a_short_scale() -> None:
    schema = RUBRIC.schema
    assert schema["required"] == ["reason", "correctness", "style", "risk"] == list(schema["properties"])
    assert schema["additionalProperties"] is False
    assert schema["properties"]["style"] == {"type": "integer", "enum": [1, 2, 3, 4, 5]}
    assert schema["properties"]["risk"] == {"type": "number", "minimum": -1.0, "maximum": 1.0}
    assert Criterion("c", high=100).schema() == {"type": "integer", "minimum": 0, "maximum": 100}


def test_the_words_name_every_criterion_and_the_format() -> None:
    assert "- correctness (a whole number from 0 = worst to 10 = best): is it right?" in RUBRIC.in_words
    assert '{"reason": "<one or two sentences>", "correctness": <number>, "style": <number>' in RUBRIC.in_words


def verdict(**changes: Any) -> dict[str, Any]:
    return {"reason": "so", "correctness": 7, "style": 3, "risk": 0.25, **changes}


@pytest.mark.parametrize("changes", [{}, {"correctness": "7"}, {"correctness": 7.0}, {"correctness": " 7.00 "}])
def test_a_verdict_of_the_right_shape_is_read(changes: dict[str, Any]) -> None:
    found = RUBRIC.read(verdict(**changes))
    assert found is not None
    assert found.scores == {"correctness": 7.0, "style": 3.0, "risk": 0.25}


@pytest.mark.parametrize(
    "changes",
    [
        *({"correctness": 11}, {"correctness": -1}, {"correctness": float("nan")}, {"correctness": float("inf")}),
        *({"correctness": True}, {"correctness": None}, {"correctness": [7]}, {"correctness": "7/10"}),
        *({"correctness": "NaN"}, {"correctness": ""}, {"correctness": "1e1"}, {"correctness": "\u0667"}),
        *({"correctness": 10**400}, {"reason": None}, {"reason": {"a": 1}}, {"extra": 1}),
    ],
)
def test_a_verdict_with_a_value_off_its_scale_or_type_is_none(changes: dict[str, Any]) -> None:
    assert RUBRIC.read(verdict(**changes)) is None


def test_a_verdict_without_one_criterion_is_none() -> None:
    assert RUBRIC.read({"reason": "so", "correctness": 7, "style": 3}) is None


@pytest.mark.parametrize(
    ("criteria", "rule"),
    [
        ([], "distinct names"),
        (["a", "a"], "distinct names"),
        ("correctness", "must be a list"),
        ([{"low": 1}], "with a name"),
        ([{"name": "a", "hihg": 3}], "did you mean 'high'"),
        ([{"name": "reason"}], "not be 'reason'"),
        ([{"name": 'a"b'}], "letters, digits"),
        ([{"name": "a", "low": 5, "high": 5}], "low must be below high"),
        ([{"name": "a", "weight": -1}], "at least 0"),
        ([{"name": "a", "weight": 0}], "more than 0"),
        ([{"name": "a", "high": float("nan")}], "finite number"),
        ([{"name": "a", "high": "10"}], "finite number"),
    ],
)
def test_a_rubric_that_cannot_be_asked_is_refused_with_its_rule(criteria: Any, rule: str) -> None:
    with pytest.raises(InvalidInput, match=rule):
        Rubric.of(criteria)


def test_a_fraction_on_a_scale_of_whole_numbers_is_no_verdict() -> None:
    whole, fractions = Rubric.of(["a"]), Rubric.of([{"name": "a", "low": 0.0, "high": 10.0}])
    assert whole.read({"reason": "so", "a": 7.5}) is None
    assert whole.read({"reason": "so", "a": "7.5"}) is None
    assert whole.read({"reason": "so", "a": 7.0}) is not None
    assert fractions.read({"reason": "so", "a": 7.5}) is not None
