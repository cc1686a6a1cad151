"""Finding the form of an answer in the words of a prompt."""

from __future__ import annotations

from typing import Any

import pytest

from rewardflow.mock_judge.prompt_format import schema_in_prompt
from rewardflow.services.judges.rubric import Criterion, Rubric

TEXT = {"type": "string"}


def whole(low: float, high: float) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


def number(low: float, high: float) -> dict[str, Any]:
    return {"type": "number", "minimum": low, "maximum": high}


@pytest.mark.parametrize(
    ("prompt", "properties"),
    [
        ("Rate the answer.", {"score": number(0, 1), "reason": TEXT}),
        ("Give a score from 1 to 5.", {"score": whole(1, 5), "reason": TEXT}),
        ('Reply {"correctness": <0 to 10>, "reason": <why>}', {"correctness": whole(0, 10), "reason": TEXT}),
        ('{"style": 1-5, "explanation": "..."}', {"style": whole(1, 5), "explanation": TEXT}),
        ('{"safety": <0.0-1.0>}', {"safety": number(0, 1)}),
        ('- depth: between 1 and 7\nReply {"depth": <number>}', {"depth": whole(1, 7)}),
        ('- depth: between 7 and 1\nReply {"depth": <number>}', {"depth": number(0, 1)}),
        ('{"title": "<text>", "score": <number>}', {"title": TEXT, "score": number(0, 1)}),
        ("A set is written {1, 2}.", {"score": number(0, 1), "reason": TEXT}),
    ],
)
def test_the_form_is_found(prompt: str, properties: dict[str, Any]) -> None:
    assert schema_in_prompt("", prompt) == {"type": "object", "properties": properties}


def test_the_rubric_of_a_judge_without_schemas_is_found() -> None:
    rubric = Rubric.of([Criterion("correctness", "is it right?", 0, 10), Criterion("calm", low=0.0, high=1.0)])
    assert schema_in_prompt("You judge.", f"...\n{rubric.in_words}")["properties"] == {
        "reason": TEXT,
        "correctness": whole(0, 10),
        "calm": number(0, 1),
    }


def test_instructions_go_before_the_prompt_and_the_last_form_before_earlier_ones() -> None:
    judged = 'The answer: {"score": 10}'
    assert "wit" in schema_in_prompt('Reply {"wit": <0 to 3>}', judged)["properties"]
    assert "wit" in schema_in_prompt("", f'{judged}\nReply {{"wit": <0 to 3>}}')["properties"]
