"""Files of answers: which columns mean what, and what becomes of rows that cannot be read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rewardflow.answers import Answer, BadRow, first_rows, read_answers
from rewardflow.errors import InvalidInput


def write(path: Path, lines: Sequence[Any]) -> Path:
    """Texts as they are, everything else as JSON."""
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), "utf-8")
    return path


def read(tmp_path: Path, *lines: Any) -> list[Answer | BadRow]:
    return list(read_answers(write(tmp_path / "answers.jsonl", lines)))


def answer(tmp_path: Path, row: dict[str, Any]) -> Answer:
    (only,) = read(tmp_path, row)
    assert isinstance(only, Answer), only
    return only


def complaint(tmp_path: Path, row: Any) -> str:
    (only,) = read(tmp_path, row)
    assert isinstance(only, BadRow), only
    return only.why


# -- columns --


@pytest.mark.parametrize("name", ["response", "solution_str", "completion"])
def test_the_response_has_three_names(name: str, tmp_path: Path) -> None:
    assert answer(tmp_path, {name: "42"}).rollout.response == "42"


def test_of_several_names_the_first_that_is_not_null_counts(tmp_path: Path) -> None:
    assert answer(tmp_path, {"completion": "c", "solution_str": "s", "response": None}).rollout.response == "s"


def test_a_response_may_be_chat_messages(tmp_path: Path) -> None:
    assert answer(tmp_path, {"completion": [{"role": "assistant", "content": "hi"}]}).rollout.response == "hi"


def test_gsm8ks_own_columns_are_understood(tmp_path: Path) -> None:
    found = answer(tmp_path, {"question": "6 * 7?", "answer": "so\n#### 42", "response": "#### 42"}).rollout
    assert (found.prompt, found.ground_truth) == ("6 * 7?", "so\n#### 42")
    assert answer(tmp_path, {"question": "q", "prompt": "p", "response": "r"}).rollout.prompt == "p"
    assert answer(tmp_path, {"question": 7, "messages": [{"role": "user"}], "response": "r"}).rollout.prompt == ""
    assert "question must be text" in complaint(tmp_path, {"question": 7, "response": "r"})


@pytest.mark.parametrize("number", [2**63 - 1, 2**64 - 1, 2**64, -(2**70), 10**30])
def test_whole_numbers_of_any_length_keep_all_their_digits(number: int, tmp_path: Path) -> None:
    found = answer(tmp_path, {"response": "x", "ground_truth": number, "extra_info": {"n": [number]}}).rollout
    assert (found.ground_truth, found.extra_info) == (number, {"n": [number]})
    assert isinstance(found.ground_truth, int)


def test_a_number_of_thousands_of_digits_stops_nothing(tmp_path: Path) -> None:
    assert len(read(tmp_path, '{"response": "x", "ground_truth": ' + "9" * 5000 + "}", {"response": "y"})) == 2


def test_a_group_id_that_pandas_made_a_float_is_the_whole_number(tmp_path: Path) -> None:
    assert answer(tmp_path, {"response": "x", "group_id": 3.0}).rollout.group_id == "3"
    assert "group_id must be" in complaint(tmp_path, {"response": "x", "group_id": 3.5})


@pytest.mark.parametrize(
    "columns",
    [{"ground_truth": "4"}, {"reward_model": {"style": "rule", "ground_truth": "4"}},
     {"reward_model.ground_truth": "4"}, {"answer": "4"}, {"ground_truth": "4", "answer": "5"}],
)  # fmt: skip
def test_the_ground_truth_is_found_where_others_keep_it(columns: dict[str, Any], tmp_path: Path) -> None:
    assert answer(tmp_path, {"response": "x", **columns}).rollout.ground_truth == "4"


def test_a_ground_truth_that_is_zero_or_false_is_one(tmp_path: Path) -> None:
    assert answer(tmp_path, {"response": "x", "ground_truth": 0, "answer": "5"}).rollout.ground_truth == 0


def test_messages_in_the_column_prompt_are_messages_as_in_verl(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "6 * 7?"}]
    rollout = answer(tmp_path, {"response": "42", "prompt": messages, "data_source": "gsm8k"}).rollout
    assert (rollout.prompt, rollout.messages, rollout.data_source) == ("", messages, "gsm8k")


def test_a_row_keeps_its_own_columns_and_its_line(tmp_path: Path) -> None:
    rows = read(tmp_path, "", {"response": "x", "mine": [1]}, "   ")
    assert [(row.line, row.columns) for row in rows] == [(2, {"response": "x", "mine": [1]})]


def test_what_python_writes_and_json_does_not_allow_is_read(tmp_path: Path) -> None:
    (row,) = read(tmp_path, '{"response": "half \\ud83d", "extra_info": {"p": NaN}}')
    assert isinstance(row, Answer)
    assert row.rollout.response == "half \ud83d"
    assert row.rollout.extra_info == {"p": None}


def test_a_byte_order_mark_is_not_part_of_the_first_row(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"response": "x"}')
    assert [type(row) for row in read_answers(path)] == [Answer]


# -- bad rows --


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ('{"response": ', "a line must be valid JSON: unexpected end of data (column 13)"),
        ([1], "a row must be an object with named columns, got [1]"),
        ({"prompt": "q"}, "a row must have one of response, solution_str, completion, got prompt"),
        ({}, "a row must have one of response, solution_str, completion, got no columns"),
        ({"response": None}, "response must be text, got null"),
        ({"response": 42}, "response must be text or a list of chat messages that ends in text, got 42"),
        ({"response": "x", "prompt": 3}, "prompt must be text or a list of chat messages, got 3"),
        ({"response": "x", "messages": ["q"]}, "messages must be a list of chat messages, got ['q']"),
        ({"response": "x", "data_source": 3}, "data_source must be text, got 3"),
        ({"response": "x", "extra_info": "{}"}, "extra_info must be an object, got '{}'"),
        ({"response": "x", "step": -1}, "step must be a whole number of at least 0, got -1"),
        ({"response": "x", "group_id": 1.5}, "group_id must be text or a whole number, got 1.5"),
        ({"response": "x", "group_id": "a", "index": "0"}, "index must be a whole number of at least 0, got '0'"),
        ({"response": "x", "group_id": "a", "group_size": True},
         "group_size must be a whole number of at least 1, got True"),
        ({"response": "x", "group_size": 4}, "a row with a group_size above 1 must have a group_id, got group_size=4"),
        ({"response": "x", "group_id": "a", "index": 2, "group_size": 2},
         "index must lie in [0, group_size), got index=2, group_size=2 in group 'a' of step 0"),
    ],
)  # fmt: skip
def test_a_bad_row_says_the_rule_and_the_value(row: Any, why: str, tmp_path: Path) -> None:
    assert complaint(tmp_path, row) == why


def test_a_bad_row_is_named_by_its_line_and_stops_no_other(tmp_path: Path) -> None:
    rows = read(tmp_path, {"response": "a"}, "{", b"\xff".decode("latin-1"), {"response": "b"})
    assert [(type(row), row.line) for row in rows] == [(Answer, 1), (BadRow, 2), (BadRow, 3), (Answer, 4)]


def test_deeply_nested_json_is_a_bad_row(tmp_path: Path) -> None:
    assert complaint(tmp_path, "[" * 100_000).startswith("a line must be valid JSON")


# -- groups --


def places(rows: Sequence[Answer | BadRow]) -> list[tuple[str, int, int] | str]:
    return [
        row.why if isinstance(row, BadRow) else (row.rollout.group_id, row.rollout.index, row.rollout.group_size)
        for row in rows
    ]


def test_without_a_group_every_row_is_its_own(tmp_path: Path) -> None:
    rows = read(tmp_path, {"response": "a", "index": 7}, {"response": "a", "index": 8})
    assert places(rows) == [("line-1", 0, 1), ("line-2", 0, 1)]


def test_with_a_group_id_alone_order_gives_the_index_and_count_the_size(tmp_path: Path) -> None:
    rows = read(tmp_path, *({"response": "x", "group_id": one} for one in ("a", 7, "a", "a", "7")))
    assert places(rows) == [("a", 0, 3), ("7", 0, 2), ("a", 1, 3), ("a", 2, 3), ("7", 1, 2)]


def test_groups_of_different_steps_are_different(tmp_path: Path) -> None:
    rows = read(tmp_path, *({"response": "x", "group_id": "a", "step": step} for step in (0, 1)))
    assert places(rows) == [("a", 0, 1), ("a", 0, 1)]


def test_index_and_size_are_taken_as_they_are_also_as_floats(tmp_path: Path) -> None:
    row = {"response": "x", "group_id": "a", "group_size": 2.0}
    assert places(read(tmp_path, {**row, "index": 1.0}, {**row, "index": 0})) == [("a", 1, 2), ("a", 0, 2)]


def test_rows_that_contradict_their_group_are_bad_and_the_others_are_a_smaller_group(tmp_path: Path) -> None:
    row = {"response": "x", "group_id": "a", "group_size": 4}
    rows = read(
        tmp_path,
        {**row, "index": 0},
        {**row, "index": 3},
        {**row, "index": 3},
        {**row, "index": 1, "group_size": 5},
        {"response": "x", "group_id": "a"},
    )
    assert places(rows) == [
        ("a", 0, 2),
        ("a", 1, 2),
        "an index may appear once, got index=3 again in group 'a' of step 0 (first: 2)",
        "a group must have one group_size, got 4 and 5 in group 'a' of step 0",
        "all rows of a group must have an index or none, got one without in group 'a' of step 0",
    ]


def test_a_limit_does_not_cut_groups(tmp_path: Path) -> None:
    rows = read(tmp_path, *({"response": "x", "group_id": one} for one in "abab"), "{", {"response": "x"})
    assert [row.line for row in first_rows(rows, 1)] == [1, 3]
    assert [row.line for row in first_rows(rows, 5)] == [1, 2, 3, 4, 5]
    assert first_rows(rows, 100) == rows
    with pytest.raises(InvalidInput, match="at least 1"):
        first_rows(rows, 0)


# -- files --


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match=r"must end in one of \.jsonl, \.ndjson, \.parquet, \.pq, got .*answers\.csv"
    ):
        list(read_answers(tmp_path / "answers.csv"))


def test_a_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(read_answers(tmp_path / "answers.jsonl"))


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    assert read(tmp_path) == []
