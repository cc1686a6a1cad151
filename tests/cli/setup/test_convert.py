"""`rewardflow convert`."""

from __future__ import annotations

from pathlib import Path

import pytest

from rewardflow.answers.row_files import read_rows, write_rows
from rewardflow.cli.main import main


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_rows(tmp_path / "test.jsonl", [{"question": "6 * 7?", "answer": "#### 42"}])
    return tmp_path / "test.jsonl"


def test_gsm8k_is_converted_and_the_split_is_the_name_of_the_file(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = source.parent / "out.parquet"
    assert main(["convert", "gsm8k", str(source), str(target)]) == 0
    assert capsys.readouterr().out == f"wrote 1 rows to {target}\n"
    ((_, row),) = read_rows(target)
    assert row["extra_info"]["split"] == "test"


def test_the_split_can_be_named(source: Path) -> None:
    target = source.parent / "out.jsonl"
    assert main(["convert", "gsm8k", str(source), str(target), "--split", "validation"]) == 0
    ((_, row),) = read_rows(target)
    assert row["extra_info"]["split"] == "validation"


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("test.jsonl", "TARGET must be a file other than SOURCE"),
        ("out.csv", "must end in one of .jsonl"),
        ("nowhere/out.jsonl", "cannot write"),
    ],
)
def test_a_target_that_cannot_be_is_one_line_and_exit_code_2(
    target: str, problem: str, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = source.read_bytes()
    assert main(["convert", "gsm8k", str(source), str(source.parent / target)]) == 2
    said = capsys.readouterr().err
    assert problem in said
    assert said.count("\n") == 1
    assert source.read_bytes() == before


def test_a_source_with_a_bad_row_writes_nothing(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source.write_text('{"question": "a", "answer": "#### 1"}\n{"question": "b", "answer": "none"}\n')
    assert main(["convert", "gsm8k", str(source), str(source.parent / "out.jsonl")]) == 2
    assert "line 2: answer must end in '#### number'" in capsys.readouterr().err
    assert sorted(path.name for path in source.parent.iterdir()) == ["test.jsonl"]
