"""Labelled answers are read as `score` reads answers; a row that cannot be used stops the reading with its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.judging.labelled_answers import read_labelled_answers


def written(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def test_labels_are_scaled_to_0_to_1_and_keep_their_remark(tmp_path: Path) -> None:
    file = written(
        tmp_path / "labels.jsonl",
        {"prompt": "q", "response": "a", "group_id": "g", "stars": 5, "stars_reason": "perfect"},
        {"prompt": "q", "response": "b", "group_id": "g", "stars": 2},
    )
    one, other = read_labelled_answers(file, column="stars", low=1, high=5)
    assert (one.label, one.remark, one.rollout.response) == (1.0, "perfect", "a")
    assert (other.label, other.remark, other.rollout.place) == (0.25, "", (0, "g", 1))


def test_true_and_false_are_labels(tmp_path: Path) -> None:
    file = written(tmp_path / "labels.jsonl", {"response": "a", "label": True}, {"response": "b", "label": False})
    assert [answer.label for answer in read_labelled_answers(file)] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        ({"response": "a"}, "line 1: label must be a number from 0 to 1, got None"),
        ({"response": "a", "label": 4}, "got 4; --label names another column, --scale another scale"),
        ({"response": "a", "label": "good"}, "got 'good'"),
        ({"label": 1}, "line 1: a row must have one of response"),
        ({"response": "a", "label": 1, "group_id": "g", "step": 3}, "must not have a step"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(row: dict[str, Any], rule: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=rule):
        read_labelled_answers(written(tmp_path / "labels.jsonl", row))


def test_an_empty_file_and_a_scale_without_length_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="at least one labelled answer"):
        read_labelled_answers(written(tmp_path / "labels.jsonl"))
    with pytest.raises(InvalidInput, match="a lower and a higher end, got 1:1"):
        read_labelled_answers(tmp_path / "labels.jsonl", low=1, high=1)


def test_the_labelled_answers_of_the_example_have_a_right_and_a_wrong_answer_to_each_problem() -> None:
    file = Path(__file__).resolve().parents[2] / "examples" / "local_judge" / "labels.jsonl"
    answers = read_labelled_answers(file)
    assert [answer.label for answer in answers] == [1.0, 0.0] * 12
    assert {answer.rollout.group_size for answer in answers} == {2}
