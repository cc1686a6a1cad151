"""Files of rows, whatever the rows mean."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rewardflow.answers.row_files import Unreadable, read_rows, write_rows
from rewardflow.errors import InvalidInput

ROWS: list[dict[str, Any]] = [{"a": 1, "b": {"c": ["x"]}}, {"a": 2, "b": {"c": []}}]


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_rows_that_were_written_are_read_with_their_lines(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows.{ending}"
    write_rows(path, ROWS)
    assert list(read_rows(path)) == [(1, ROWS[0]), (2, ROWS[1])]


def test_a_line_that_is_no_json_is_told_and_the_next_one_comes(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": \n\n[1]\n')
    (first, bad), second = read_rows(path)
    assert (first, second) == (1, (3, [1]))
    assert isinstance(bad, Unreadable)
    assert bad.why.startswith("a line must be valid JSON")


def test_a_file_that_cannot_be_completed_leaves_the_old_one(tmp_path: Path) -> None:
    def rows() -> Any:
        yield ROWS[0]
        raise InvalidInput("row 2 is bad")

    path = tmp_path / "rows.jsonl"
    path.write_text("old")
    with pytest.raises(InvalidInput, match="row 2 is bad"):
        write_rows(path, rows())
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["rows.jsonl"]


@pytest.mark.parametrize("depth", [101, 900, 5_000, 100_000])
def test_a_row_nested_without_end_is_refused_and_the_next_one_comes(depth: int, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": ' + "[" * depth + "]" * depth + '}\n{"a": "' + "[" * depth + '"}\n')
    (_, deep), (_, text) = read_rows(path)
    assert isinstance(deep, Unreadable)
    assert "at most 100 deep" in deep.why or "depth limit" in deep.why
    assert text == {"a": "[" * depth}


def test_a_file_of_rows_is_private_and_is_not_written_through_a_link(tmp_path: Path) -> None:
    victim, out = tmp_path / "victim.jsonl", tmp_path / "out.jsonl"
    victim.write_text("mine")
    out.symlink_to(victim)
    before = os.umask(0)
    try:
        write_rows(out, [{"a": 1}])
    finally:
        os.umask(before)
    assert victim.read_text() == "mine"
    assert out.lstat().st_mode & 0o777 == 0o600
    assert out.read_text() == '{"a":1}\n'
