"""Parquet in and out. Needs pyarrow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rewardflow import Reward
from rewardflow.answers import Answer, BadRow, JudgedAnswer, read_answers, write_verdicts
from rewardflow.errors import InvalidInput
from rewardflow.extras import install_command


def score_all(rows: list[Answer | BadRow]) -> list[JudgedAnswer]:
    return [
        JudgedAnswer(row, Reward(value=0.5, components={"a": 1.0}) if isinstance(row, Answer) else None) for row in rows
    ]


def through(tmp_path: Path, columns: dict[str, Any]) -> Any:
    """The table that comes of one that is read, judged and written."""
    pq.write_table(pa.table(columns), tmp_path / "in.parquet")
    rows = list(read_answers(tmp_path / "in.parquet"))
    write_verdicts(tmp_path / "out.parquet", score_all(rows), source=tmp_path / "in.parquet")
    return pq.read_table(tmp_path / "out.parquet")


def from_jsonl(tmp_path: Path, *rows: dict[str, Any]) -> list[dict[str, Any]]:
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    write_verdicts(tmp_path / "out.parquet", score_all(list(read_answers(tmp_path / "in.jsonl"))))
    table: list[dict[str, Any]] = pq.read_table(tmp_path / "out.parquet").to_pylist(maps_as_pydicts="strict")
    return table


def test_verls_layout_is_read(tmp_path: Path) -> None:
    row = {
        "data_source": "gsm8k",
        "prompt": [{"role": "user", "content": "6 * 7?"}],
        "reward_model": {"style": "rule", "ground_truth": "42"},
        "extra_info": {"index": 3, "split": "train"},
        "completion": "42",
    }
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "in.parquet")
    (answer,) = read_answers(tmp_path / "in.parquet")
    assert isinstance(answer, Answer)
    rollout = answer.rollout
    assert (rollout.data_source, rollout.ground_truth, rollout.response) == ("gsm8k", "42", "42")
    assert rollout.messages == row["prompt"]
    assert rollout.extra_info == row["extra_info"]


def test_bad_rows_are_named_by_their_number(tmp_path: Path) -> None:
    pq.write_table(pa.table({"response": ["a", None, "c"]}), tmp_path / "in.parquet")
    rows = list(read_answers(tmp_path / "in.parquet"))
    assert [row.line for row in rows if isinstance(row, BadRow)] == [2]


def test_columns_keep_the_types_of_the_source(tmp_path: Path) -> None:
    small = pa.array([1, 2], type=pa.int8())
    when = pa.array([0, 1], type=pa.timestamp("ms", tz="UTC"))
    pairs = pa.array([[("k", 1)], []], type=pa.map_(pa.string(), pa.int32()))
    table = through(tmp_path, {"response": ["a", "b"], "small": small, "when": when, "pairs": pairs})
    assert [table.schema.field(name).type for name in ("small", "when", "pairs")] == [small.type, when.type, pairs.type]
    assert table.column("small").to_pylist() == [1, 2]


def test_verdict_columns_have_the_same_types_in_every_file(tmp_path: Path) -> None:
    table = through(tmp_path, {"response": ["a", None]})
    none = through(tmp_path, {"response": pa.array([], type=pa.string())})
    assert table.column("score").to_pylist() == [0.5, None]
    assert table.column("kind").to_pylist() == [None, "bad_row"]
    assert table.schema.names == none.schema.names or none.num_rows == 0
    assert all(none.schema.field(name).type == table.schema.field(name).type for name in table.schema.names[1:])


def test_components_are_a_map_and_extras_are_json(tmp_path: Path) -> None:
    (row,) = from_jsonl(tmp_path, {"response": "x"})
    assert (row["components"], row["extras"]) == ({"a": 1.0}, "{}")


def test_values_that_share_no_type_become_json_text(tmp_path: Path) -> None:
    rows = from_jsonl(
        tmp_path,
        {"response": "x", "ground_truth": 4, "extra_info": {}},
        {"response": "half \ud83d", "ground_truth": "4", "extra_info": {}},
        {"response": 3},
    )
    assert [row["ground_truth"] for row in rows] == ["4", '"4"', None]
    assert [row["extra_info"] for row in rows] == ["{}", "{}", None]
    assert [row["response"] for row in rows] == ['"x"', '"half \\\\ud83d"', "3"]


def test_broken_unicode_is_escaped_because_parquet_cannot_hold_it(tmp_path: Path) -> None:
    (row,) = from_jsonl(tmp_path, {"response": "half \ud83d"})
    assert row["response"] == "half \\ud83d"


@pytest.mark.parametrize(
    "column",
    [
        pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\2\0\0\0\3\0\0\0"), pa.py_buffer(b"\xff\xfex")),
        pa.array([2**62, 0], pa.timestamp("us")),
        pa.array([2**30, 0], pa.date32()),
        pa.array([[("a", 1), ("a", 2)], []], pa.map_(pa.string(), pa.int64())),
    ],
    ids=["broken unicode", "a year beyond 9999", "a day beyond 9999", "a key twice"],
)
def test_a_value_that_python_cannot_hold_spoils_its_row_alone(tmp_path: Path, column: pa.Array) -> None:
    pq.write_table(pa.table({"response": ["one", "two"], "other": column}), tmp_path / "in.parquet")
    bad, good = read_answers(tmp_path / "in.parquet")
    assert isinstance(bad, BadRow)
    assert "a row must hold values that Python can hold" in bad.why
    assert isinstance(good, Answer)
    assert good.rollout.response == "two"


def test_a_file_whose_columns_are_nested_too_deeply_for_pyarrow_is_refused(tmp_path: Path) -> None:
    deep = pa.array([1])
    for _ in range(60):
        deep = pa.ListArray.from_arrays([0, 1], deep)
    pq.write_table(pa.table({"response": ["one"], "deep": deep}), tmp_path / "in.parquet")
    with pytest.raises(InvalidInput, match=r"in.parquet must be a parquet file that pyarrow can read: .*nested"):
        list(read_answers(tmp_path / "in.parquet"))


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in.parquet").write_text("text")
    with pytest.raises(InvalidInput, match=r"in\.parquet must be a parquet file that pyarrow can read"):
        list(read_answers(tmp_path / "in.parquet"))


def test_without_pyarrow_the_error_names_the_extra() -> None:
    code = (
        "import sys\n"
        "sys.modules['pyarrow'] = None\n"  # how Python itself marks a module that cannot be imported
        "from rewardflow.answers import check_format\n"
        "try:\n"
        "    check_format('x.parquet')\n"
        "except ValueError as error:\n"
        "    sys.stdout.write(str(error))\n"
    )
    source = str(Path(__file__).resolve().parents[2] / "src")
    result = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": source}, capture_output=True, text=True)
    assert result.stdout == f"parquet files need pyarrow, which is not installed: {install_command('parquet')}"
