"""Every line that is appended to a file comes back, also after a crash, or is counted as failed."""

from __future__ import annotations

import json
import logging
import math
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.errors import InvalidInput
from rewardflow.observe.line_file import BATCH_LINES, LineFile, encode_line, read_lines

DEV_FULL = Path("/dev/full")
needs_dev_full = pytest.mark.skipif(not DEV_FULL.exists(), reason="needs a disk that is always full")


def number_file(path: Path) -> LineFile[int]:
    return LineFile(path, lambda number: {"number": number})


def numbers(path: Path) -> list[int]:
    return [data["number"] for _, data in read_lines(path)]


# -- writing --


def test_lines_are_encoded_and_written_by_another_thread_without_being_asked(tmp_path: Path) -> None:
    encoded_by: list[str] = []
    encoded = threading.Event()

    def encode(number: int) -> dict[str, Any]:
        encoded_by.append(threading.current_thread().name)
        encoded.set()
        return {"number": number}

    with LineFile(tmp_path / "lines.jsonl", encode) as lines:
        lines.append(1)
        assert encoded.wait(timeout=60)
    assert encoded_by == ["rewardflow-lines.jsonl"]


def test_appending_does_not_wait_for_a_writer_that_is_stuck(tmp_path: Path) -> None:
    stuck, go_on = threading.Event(), threading.Event()

    def encode(number: int) -> dict[str, Any]:
        stuck.set()
        go_on.wait()
        return {"number": number}

    with LineFile(tmp_path / "lines.jsonl", encode) as lines:
        lines.append(0)
        assert stuck.wait(timeout=60)
        for number in range(1, 5 * BATCH_LINES):
            lines.append(number)
        assert lines.statistics().waiting == 5 * BATCH_LINES - 1
        go_on.set()
    assert len((tmp_path / "lines.jsonl").read_bytes().splitlines()) == 5 * BATCH_LINES


def test_many_threads_can_append_and_nothing_is_lost(tmp_path: Path) -> None:
    def append_all(first: int) -> None:
        for number in range(first, first + 1000):
            lines.append(number)

    with number_file(tmp_path / "lines.jsonl") as lines:
        threads = [threading.Thread(target=append_all, args=(first,)) for first in range(0, 8000, 1000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    written = numbers(tmp_path / "lines.jsonl")
    assert sorted(written) == list(range(8000))
    assert all([n for n in written if n // 1000 == k] == list(range(1000 * k, 1000 * k + 1000)) for k in range(8))


def test_closing_twice_is_fine_and_what_comes_after_is_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = number_file(tmp_path / "lines.jsonl")
    lines.close()
    lines.close()
    lines.append(1)
    lines.append(2)
    assert lines.failed == 2
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert numbers(tmp_path / "lines.jsonl") == []


@needs_dev_full
def test_a_full_disk_is_reported_once_counted_and_survived(caplog: pytest.LogCaptureFixture) -> None:
    with number_file(DEV_FULL) as lines:
        for number in range(3 * BATCH_LINES):
            lines.append(number)
    assert lines.failed == 3 * BATCH_LINES
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "No space left" in errors[0].getMessage()


@given(data=st.dictionaries(st.text(), st.recursive(st.text() | st.floats() | st.none(), st.lists, max_leaves=5)))
def test_every_line_is_one_line_of_strict_json(data: dict[str, Any]) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    line = encode_line(data)
    assert line.count(b"\n") == 1
    json.loads(line.decode("utf-8"), parse_constant=refuse)


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="must be writable"):
        number_file(tmp_path / "missing" / "lines.jsonl")


# -- crashes --

WHOLE = b"".join(encode_line({"number": number}) for number in range(4))


@given(size=st.integers(min_value=0, max_value=len(WHOLE)))
def test_a_file_that_was_cut_anywhere_is_read_and_then_healed(size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lines.jsonl"
        path.write_bytes(WHOLE[:size])
        survivors = numbers(path)
        assert survivors == list(range(len(survivors)))
        assert len(survivors) >= WHOLE[:size].count(b"\n")
        with number_file(path) as lines:
            lines.append(99)
        assert numbers(path) == [*survivors, 99]


def test_a_long_torn_line_and_the_zeros_of_a_power_cut_are_healed(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(WHOLE + b'{"number": "' + b"x" * 200_000 + b"\0" * 4096)
    assert numbers(path) == [0, 1, 2, 3]
    number_file(path).close()
    assert path.read_bytes() == WHOLE


def test_damage_in_the_middle_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(WHOLE.replace(b'"number":0', b'"number":', 1))
    with pytest.raises(InvalidInput, match=r"lines\.jsonl, line 1: every line must be a JSON object"):
        list(read_lines(path))


def test_a_file_that_does_not_exist_has_no_lines(tmp_path: Path) -> None:
    assert list(read_lines(tmp_path / "lines.jsonl")) == []


def test_after_a_flush_everything_appended_before_is_in_the_file_in_order(tmp_path: Path) -> None:
    with LineFile[dict[str, int]](tmp_path / "lines.jsonl", dict) as file:
        for number in range(5000):
            file.append({"n": number})
            if number % 1000 == 7:
                file.flush()
                assert [line["n"] for _, line in read_lines(file.path)] == list(range(number + 1))


@pytest.mark.parametrize("depth", [900, 5_000, 100_000])
def test_a_value_nested_without_end_is_cut_and_the_line_is_written(depth: int) -> None:
    deep: Any = 1
    for _ in range(depth):
        deep = [deep]
    line = encode_line({"deep": deep, "beside": 7, "odd": math.nan})
    assert json.loads(line)["beside"] == 7
