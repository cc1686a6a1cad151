"""Files in which the last line of a step counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from written_runs import write_lines

from rewardflow.errors import InvalidInput
from rewardflow.report.line_reading import first_line, last_line, last_lines


def line(step: int, n: int, source: str = "reward", v: int = 1) -> dict[str, object]:
    return {"v": v, "step": step, "source": source, "n": n}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "steps.jsonl"


def numbers(path: Path) -> dict[int, int]:
    return {step: fields.count("n") for step, fields in last_lines(path, "reward").items()}


def test_the_last_line_of_a_step_and_source_counts_and_steps_are_in_order(path: Path) -> None:
    write_lines(path, [line(2, 1), line(0, 2), line(2, 3), line(2, 9, source="other")])
    assert numbers(path) == {0: 2, 2: 3}
    assert list(numbers(path)) == [0, 2]


def test_a_file_that_is_not_there_has_no_lines(path: Path) -> None:
    assert last_lines(path, "reward") == {}
    assert first_line(path) is None
    assert last_line(path) is None


def test_a_line_that_is_being_written_is_skipped_and_the_one_before_counts(path: Path) -> None:
    write_lines(path, [line(0, 1), line(1, 2)])
    with path.open("ab") as file:
        file.write(b'{"v":1,"step":1,"source":"reward","n":3')
    assert numbers(path) == {0: 1, 1: 2}
    assert last_line(path) == line(1, 2)


def test_a_last_line_that_lacks_only_its_end_counts(path: Path) -> None:
    write_lines(path, [line(0, 1)])
    path.write_bytes(path.read_bytes().rstrip())
    assert numbers(path) == {0: 1}


def test_a_line_of_another_writer_is_read_whatever_the_order_of_its_fields(path: Path) -> None:
    path.write_text('{"source": "reward", "n": 4, "step": 5, "v": 1}\n', "utf-8")
    assert numbers(path) == {5: 4}


def test_a_damaged_line_is_an_error_that_names_it(path: Path) -> None:
    write_lines(path, [line(0, 1)])
    with path.open("ab") as file:
        file.write(b'{"v":1,"step":1,"source":"reward",\n')
    write_lines(path, [line(2, 1)])
    with pytest.raises(InvalidInput, match=r"steps\.jsonl, line 2: every line must be a JSON object"):
        last_lines(path, "reward")


@pytest.mark.parametrize("text", ['{"v":2,"step":0,"source":"reward"}', '{"step":0,"source":"reward"}'])
def test_a_line_of_another_schema_is_an_error_that_names_it(path: Path, text: str) -> None:
    path.write_text(text + "\n", "utf-8")
    with pytest.raises(InvalidInput, match=r"steps\.jsonl, line 1: v must be 1 to 1"):
        last_lines(path, "reward")


def test_a_line_without_a_step_is_an_error(path: Path) -> None:
    path.write_text('{"v":1,"source":"reward"}\n', "utf-8")
    with pytest.raises(InvalidInput, match="a step is needed"):
        last_lines(path, "reward")


def test_the_last_line_of_a_long_file_is_found(path: Path) -> None:
    write_lines(path, [line(step, step) for step in range(50_000)])
    assert last_line(path) == line(49_999, 49_999)
    assert first_line(path) == line(0, 0)
