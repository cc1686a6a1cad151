"""Tables of rows: which rows are read, and how bad files and data sets are refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rewardflow.answers.row_files import write_rows
from rewardflow.data.table import names_shown, read_dataset, read_file, table_of
from rewardflow.errors import InvalidInput


def test_a_row_knows_its_line_though_lines_are_empty(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('\n{"prompt": "a"}\n\n{"prompt": "b", "more": 1}\n')
    table = read_file(path)
    assert [(row.line, row.columns["prompt"]) for row in table.rows] == [(2, "a"), (4, "b")]
    assert table.columns == ("prompt", "more")


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_limit_takes_the_first_rows(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"prompts.{ending}"
    write_rows(path, [{"prompt": str(i)} for i in range(5)])
    assert [row.columns for row in read_file(path, limit=2).rows] == [{"prompt": "0"}, {"prompt": "1"}]
    assert len(read_file(path, limit=9).rows) == len(read_file(path).rows) == 5


def test_rows_after_the_limit_may_be_bad(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\nnonsense\n')
    assert len(read_file(path, limit=1).rows) == 1


def test_every_bad_line_is_told_up_to_five(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(['{"prompt": "a"}', "{", "[1]", *["3"] * 6]))
    with pytest.raises(InvalidInput) as caught:
        read_file(path)
    said = str(caught.value)
    assert said.startswith(f"{path}, line 2: a line must be valid JSON")
    assert "line 3: a row must be an object with named columns, got [1]; line 4:" in said
    assert said.endswith("; and 3 more bad rows")


def test_a_file_without_rows_or_without_being_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"the file of prompts must exist, got .*nowhere"):
        read_file(tmp_path / "nowhere.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(InvalidInput, match="must have at least one row, got none"):
        read_file(tmp_path / "empty.jsonl")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "prompts.csv").write_text(json.dumps({}))
    with pytest.raises(InvalidInput, match=r"must end in one of \.jsonl"):
        read_file(tmp_path / "prompts.csv")


def test_of_very_many_columns_only_some_are_named() -> None:
    table = table_of("wide", [(1, {f"c{i}": 1 for i in range(23)})])
    assert names_shown(table.columns).endswith("c19 and 3 more")
    assert names_shown(()) == "no columns"


# -- data sets of the `datasets` package --


def load(path: str, name: str | None, *, split: str) -> Iterator[dict[str, Any]]:
    if path == "nowhere":
        raise FileNotFoundError("no such data set")
    return iter([{"prompt": f"{path} {name} {split} {i}"} for i in range(3)])


def test_rows_are_those_of_the_split_and_configuration() -> None:
    table = read_dataset("openai/gsm8k:main", "train", limit=2, load=load)
    assert [(row.line, row.columns["prompt"]) for row in table.rows] == [
        (1, "openai/gsm8k main train 0"),
        (2, "openai/gsm8k main train 1"),
    ]
    assert read_dataset("squad", "test", load=load).rows[0].columns == {"prompt": "squad None test 0"}


def test_a_data_set_that_cannot_be_loaded_is_named() -> None:
    with pytest.raises(InvalidInput, match="datasets can load, got nowhere: no such data set"):
        read_dataset("nowhere", "train", load=load)


def test_without_the_package_the_command_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # how Python marks what cannot be imported
    with pytest.raises(InvalidInput, match=r"data.dataset=squad needs datasets: .* pip install .*\[datasets\]"):
        read_dataset("squad", "train")
