"""Files of verdicts: one row for each row, with the row's own columns."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rewardflow import Reward, Rollout
from rewardflow.answers import Answer, BadRow, JudgedAnswer, write_verdicts
from rewardflow.errors import InvalidInput


def judged(columns: dict[str, Any], **verdict: Any) -> JudgedAnswer:
    return JudgedAnswer(Answer(1, columns, Rollout(group_id="q", response="x")), Reward(**verdict))


def written(path: Path, *rows: JudgedAnswer) -> list[dict[str, Any]]:
    write_verdicts(path, rows)
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_verdict_stands_beside_the_columns_of_its_row(tmp_path: Path) -> None:
    reward = {"value": 0.5, "components": {"style": 0.5}, "explanation": "fine", "attempts": 2, "latency_s": 1.5,
              "cost_usd": 0.25, "tokens": 9, "cached": True, "extras": {"passages": [3]}}  # fmt: skip
    assert written(tmp_path / "v.jsonl", judged({"response": "x", "mine": [1]}, **reward)) == [
        {"response": "x", "mine": [1], "score": 0.5, "status": "scored", "kind": None, "error": None, "imputed": False,
         "components": {"style": 0.5}, "explanation": "fine", "extras": {"passages": [3]}, "attempts": 2,
         "latency_s": 1.5, "cost_usd": 0.25, "tokens": 9, "cached": True}
    ]  # fmt: skip


def test_a_failure_has_a_kind_and_a_reason_and_no_score(tmp_path: Path) -> None:
    (row,) = written(tmp_path / "v.jsonl", judged({}, kind="timeout", error="no answer in 3 s"))
    assert (row["score"], row["status"], row["kind"], row["error"]) == (None, "failed", "timeout", "no answer in 3 s")


def test_a_bad_row_is_written_as_failed_with_its_line(tmp_path: Path) -> None:
    (row,) = written(tmp_path / "v.jsonl", JudgedAnswer(BadRow(7, {"prompt": "q"}, "no response")))
    assert (row["prompt"], row["score"], row["status"], row["kind"]) == ("q", None, "failed", "bad_row")
    assert row["error"] == "line 7: no response"


def test_a_column_with_the_name_of_a_verdicts_is_kept_under_another(tmp_path: Path) -> None:
    (row,) = written(tmp_path / "v.jsonl", judged({"score": "A", "input_score": "B"}, value=1.0))
    assert (row["score"], row["input_score"], row["input_input_score"]) == (1.0, "B", "A")


def test_broken_unicode_and_large_numbers_are_written_as_valid_json(tmp_path: Path) -> None:
    columns = {"response": "half \ud83d", "big": 2**70, "nan": float("nan")}
    (row,) = written(tmp_path / "v.jsonl", judged(columns, value=1.0))
    assert (row["response"], row["big"], row["nan"]) == ("half \ud83d", 2**70, None)


def test_a_line_separator_inside_a_text_does_not_end_the_row(tmp_path: Path) -> None:
    write_verdicts(tmp_path / "v.jsonl", [judged({"response": "a\u2028b\n"}, value=1.0)])
    assert (tmp_path / "v.jsonl").read_bytes().count(b"\n") == 1


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "v.jsonl"
    path.write_text("old")

    def rows() -> Any:
        yield judged({}, value=1.0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_verdicts(path, rows())
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["v.jsonl"]


def test_a_folder_that_is_not_there_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"cannot write .*missing/v\.jsonl: No such file"):
        write_verdicts(tmp_path / "missing" / "v.jsonl", [])


def test_an_answer_without_a_reward_is_refused() -> None:
    with pytest.raises(InvalidInput, match="an answer has a reward"):
        JudgedAnswer(Answer(1, {}, Rollout(group_id="q", response="x")))
