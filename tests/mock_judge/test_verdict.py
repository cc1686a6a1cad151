"""Answers fit their schema, are the same every time, and their tokens spell them."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.mock_judge.verdict import MockVerdict, Score, score_at, score_probabilities

RUBRIC = {
    "type": "object",
    "properties": {
        "reason": {"type": "string"},
        "correctness": {"type": "integer", "minimum": 0, "maximum": 10},
        "calm": {"type": "number", "minimum": -1, "maximum": 1},
    },
}


def answer(schema: dict[str, Any], prompt: str = "Judge this.", seed: int = 0) -> Any:
    return MockVerdict(schema, prompt, seed).answer


def field(schema: dict[str, Any], prompt: str = "Judge this.") -> Any:
    return answer({"type": "object", "properties": {"field": schema}}, prompt)["field"]


def answers(schema: dict[str, Any], count: int = 300) -> list[Any]:
    return [field(schema, f"prompt {number}") for number in range(count)]


def test_an_answer_has_the_fields_of_its_schema_in_their_order() -> None:
    found = answer(RUBRIC)
    assert list(found) == ["reason", "correctness", "calm"]
    assert isinstance(found["reason"], str)
    assert isinstance(found["correctness"], int)


def test_the_same_prompt_gets_the_same_answer_and_others_get_others() -> None:
    assert answer(RUBRIC) == answer(RUBRIC)
    assert len({orjson.dumps(answer(RUBRIC, f"prompt {number}")) for number in range(50)}) > 45
    assert len({orjson.dumps(answer(RUBRIC, seed=seed)) for seed in range(50)}) > 45


@pytest.mark.parametrize(
    ("schema", "possible"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 5}, {1, 2, 3, 4, 5}),
        ({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 5}, {2, 3, 4}),
        ({"type": "integer"}, set(range(11))),
        ({"type": "integer", "minimum": 20}, set(range(20, 31))),
        ({"type": "integer", "maximum": -3}, set(range(-13, -2))),
        ({"type": ["integer", "null"], "maximum": 2}, {0, 1, 2}),
        ({"enum": [0, 1, 2]}, {0, 1, 2}),
        ({"enum": ["A", "B", "tie"]}, {"A", "B", "tie"}),
        ({"const": "fixed"}, {"fixed"}),
        ({"type": "boolean"}, {True, False}),
        ({"anyOf": [{"type": "null"}, {"enum": ["x"]}]}, {"x"}),
        ({"type": "null"}, {None}),
    ],
)
def test_every_value_that_a_schema_allows_is_given_and_no_other(schema: dict[str, Any], possible: set[Any]) -> None:
    assert set(answers(schema)) == possible


def test_whole_scores_are_equally_likely() -> None:
    counts = Counter(answers({"type": "integer", "minimum": 0, "maximum": 4}, 5000))
    assert all(count == pytest.approx(1000, rel=0.15) for count in counts.values())


@given(low=st.floats(-1e6, 1e6), width=st.floats(0, 1e6), luck=st.floats(0, 1, exclude_max=True))
def test_a_score_is_on_its_scale(low: float, width: float, luck: float) -> None:
    assert low <= score_at(luck, low, low + width, whole=False) <= low + width


def test_nested_objects_references_and_lists_are_filled() -> None:
    schema = {
        "$defs": {"rating": {"type": "integer", "minimum": 1, "maximum": 3}},
        "type": "object",
        "properties": {
            "scores": {"type": "object", "properties": {"wit": {"$ref": "#/$defs/rating"}}},
            "each": {"type": "array", "items": {"$ref": "#/$defs/rating"}, "minItems": 4},
            "pair": {"type": "array", "prefixItems": [{"type": "boolean"}, {"const": 7}]},
        },
    }
    found = answer(schema)
    assert found["scores"]["wit"] in (1, 2, 3)
    assert len(found["each"]) == 4
    assert found["pair"][1] == 7
    assert {"scores.wit", "each.0", "each.3"} <= set(MockVerdict(schema, "Judge this.", 0).scores)


def test_a_list_of_different_items_is_a_ranking() -> None:
    item = {"type": "integer", "minimum": 1, "maximum": 4}
    rankings = answers({"type": "array", "items": item, "uniqueItems": True, "minItems": 4}, 50)
    assert all(sorted(ranking) == [1, 2, 3, 4] for ranking in rankings)
    assert len({tuple(ranking) for ranking in rankings}) > 10


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": "object", "properties": 7},
        {"type": "array", "minItems": "many"},
        {"type": "integer", "minimum": "low"},
        {"$ref": "#/nowhere"},
        {"$ref": "#"},
        {"anyOf": []},
        {"enum": []},
        {"type": "string", "maxLength": -1},
        {"type": "object", "properties": {"again": {"$ref": "#"}}},
    ],
)
def test_a_strange_schema_gets_an_answer_too(schema: dict[str, Any]) -> None:
    text = "".join(token.text for token in MockVerdict(schema, "Judge this.", 0).tokens())
    assert orjson.loads(text) == answer(schema)


@given(st.text(), st.integers(0, 100))
def test_the_tokens_spell_the_answer(prompt: str, seed: int) -> None:
    verdict = MockVerdict(RUBRIC, prompt, seed)
    assert orjson.loads("".join(token.text for token in verdict.tokens())) == verdict.answer


def test_only_scores_have_alternatives_and_the_given_one_is_the_likeliest() -> None:
    verdict = MockVerdict(
        {"type": "object", "properties": {"wit": {"type": "integer"}, "reason": {"type": "string"}}}, "x", 0
    )
    (scored,) = [token for token in verdict.tokens() if token.probabilities is not None]
    assert scored.text == str(verdict.answer["wit"])
    assert scored.probabilities is not None
    assert set(scored.probabilities) == {str(score) for score in range(11)}
    assert max(scored.probabilities, key=lambda text: scored.probabilities[text]) == scored.text


@given(low=st.integers(-50, 50), width=st.integers(0, 500), share=st.floats(0, 1))
def test_the_probabilities_of_scores_add_up_to_one(low: int, width: int, share: float) -> None:
    probabilities = score_probabilities(Score(low + math.floor(width * share), low, low + width))
    assert math.fsum(probabilities.values()) == pytest.approx(1.0)
    assert all(low <= int(text) <= low + width for text in probabilities)


def test_a_spoilt_verdict_has_no_good_score_and_no_good_choice() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"enum": ["A", "B"]}, "c": {"enum": [1, 2]}},
    }
    spoilt = MockVerdict(schema, "x", 0, lambda score: math.nan)
    assert math.isnan(spoilt.answer["a"])
    assert math.isnan(spoilt.answer["c"])
    assert spoilt.answer["b"] not in ("A", "B")
    assert '"a":NaN' in "".join(token.text for token in spoilt.tokens())
