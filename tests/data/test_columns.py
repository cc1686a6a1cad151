"""Rows become prompts: which columns are read, and how bad rows are reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rewardflow.answers.row_files import write_rows
from rewardflow.data.columns import Columns, prompts_of, value_at
from rewardflow.data.table import read_file, table_of
from rewardflow.errors import InvalidInput
from rewardflow.flow.records import Prompt

MESSAGES = [{"role": "user", "content": "6 * 7?"}]


def read(*rows: dict[str, Any], prompt: str | None = None, answer: str | None = None) -> list[Prompt]:
    return prompts_of(table_of("t.jsonl", enumerate(rows, start=1)), Columns(prompt=prompt, answer=answer))


def complaint(*rows: dict[str, Any], **columns: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        read(*rows, **columns)
    return str(caught.value)


def test_verls_layout_works_as_it_is(tmp_path: Path) -> None:
    rows = [
        {
            "data_source": "openai/gsm8k",
            "prompt": MESSAGES,
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "42"},
            "extra_info": {"split": "train", "index": 0},
        }
    ]
    write_rows(tmp_path / "t.parquet", rows)
    assert prompts_of(read_file(tmp_path / "t.parquet"), Columns()) == [
        Prompt(
            uid="0",
            messages=MESSAGES,
            ground_truth="42",
            data_source="openai/gsm8k",
            extra_info={"split": "train", "index": 0},
        )
    ]


def test_gsm8ks_own_columns_work_as_they_are() -> None:
    assert read({"question": "6 * 7?", "answer": "so\n#### 42"}) == [
        Prompt(uid="0", text="6 * 7?", ground_truth="so\n#### 42")
    ]


def test_messages_may_have_a_column_of_their_own() -> None:
    assert read({"messages": MESSAGES})[0].messages == MESSAGES


def test_columns_can_be_chosen_also_inside_others() -> None:
    row = {"prompt": "not this", "q": "this", "meta": {"final": 7}}
    (prompt,) = read(row, prompt="q", answer="meta.final")
    assert (prompt.text, prompt.ground_truth) == ("this", 7)


def test_a_column_whose_name_has_a_dot_goes_before_one_inside_another() -> None:
    assert value_at({"a.b": 1, "a": {"b": 2}}, "a.b") == 1
    assert value_at({"a": {"b": 2}}, "a.b") == 2
    assert value_at({"a": 3}, "a.b") is None


def test_what_parquet_fills_in_is_not_part_of_a_message(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Be brief.", "name": "x"}, {"role": "user", "content": "6 * 7?"}]
    write_rows(tmp_path / "t.parquet", [{"prompt": chat}])
    assert prompts_of(read_file(tmp_path / "t.parquet"), Columns())[0].messages == chat


def test_the_uid_is_the_number_of_the_row_and_not_its_line() -> None:
    table = table_of("t", [(3, {"prompt": "a"}), (9, {"prompt": "b"})])
    assert [prompt.uid for prompt in prompts_of(table, Columns())] == ["0", "1"]


def test_no_answer_is_no_mistake_unless_a_column_is_named() -> None:
    assert read({"prompt": "a"})[0].ground_truth is None
    assert (
        complaint({"prompt": "a", "x": 1}, {"prompt": "b"}, answer="x")
        == "t.jsonl, line 2: x must have a value, got null"
    )


def test_missing_columns_are_told_with_those_that_are_there() -> None:
    assert complaint({"input": "a", "output": "b"}) == (
        "t.jsonl must have a column prompt or messages or question, or data.prompt_column must name another; "
        "it has input, output"
    )
    assert complaint({"question": "a"}, prompt="query") == (
        "t.jsonl must have the column query that data.prompt_column names; it has question"
    )
    assert complaint({"question": "a"}, answer="final") == (
        "t.jsonl must have the column final that data.answer_column names; it has question"
    )


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"prompt": None}, "prompt must be text or a list of chat messages, got null"),
        ({"prompt": ""}, "prompt must be text or a list of chat messages, got ''"),
        ({"prompt": []}, "prompt must be text or a list of chat messages, got []"),
        ({"prompt": 7}, "prompt must be text or a list of chat messages, got 7"),
        ({"prompt": "6 \ud800 7"}, "prompt must be whole characters, got the half surrogate pair '\\ud800'"),
        (
            {"prompt": [{"role": "user", "content": "\udfff"}]},
            "prompt[0].content must be whole characters, got the half surrogate pair '\\udfff'",
        ),
        ({"prompt": ["hi"]}, "prompt must be text or a list of chat messages, got ['hi']"),
        ({"prompt": [{"role": "user"}]}, "prompt[0] must have the texts role and content, got {'role': 'user'}"),
        ({"prompt": "a", "data_source": 3}, "data_source must be text, got 3"),
        ({"prompt": "a", "extra_info": "x"}, "extra_info must be an object, got 'x'"),
    ],
)
def test_a_row_of_wrong_types_is_named_by_line(row: dict[str, Any], why: str) -> None:
    assert complaint({"prompt": "fine"}, row) == f"t.jsonl, line 2: {why}"
