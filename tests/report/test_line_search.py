"""A few steps out of a long file."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewardflow.report.line_search import DEFAULT_EFFORT, Effort, lines_of_steps


def line(data: dict[str, object]) -> str:
    return json.dumps(data, separators=(",", ":")) + "\n"


def write_long(path: Path, steps: int, a_step: int, *, overlap: int = 0, seed: int = 0) -> None:
    """Lines of 100 bytes; each step's lie among those of `overlap` steps before it."""
    chance = random.Random(seed)
    order = sorted((step + chance.uniform(0, 1 + overlap), step) for step in range(steps) for _ in range(a_step))
    with path.open("w") as file:
        for place, (_, step) in enumerate(order):
            file.write(line({"event": "CallEnded", "step": step, "n": place, "filler": "x" * 60}))
            if place % 7 == 0:
                file.write(line({"event": "DeviceIdled", "n": place}))


def steps_found(path: Path, wanted: set[int], open_together: int, effort: Effort = DEFAULT_EFFORT) -> list[int]:
    return [line["step"] for line in lines_of_steps(path, wanted, open_together=open_together, effort=effort).lines]


def test_a_file_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert lines_of_steps(tmp_path / "no", {1}, open_together=1).lines == []


def test_all_lines_of_the_steps_are_found_in_a_file_that_is_not_small(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write_long(path, steps=400, a_step=250)
    assert path.stat().st_size > DEFAULT_EFFORT.small_bytes
    assert steps_found(path, {200, 201}, 2) == [200] * 250 + [201] * 250
    assert steps_found(path, {0}, 2) == [0] * 250
    assert steps_found(path, {399}, 2) == [399] * 250


def test_steps_that_are_open_together_are_found_among_each_other(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write_long(path, steps=400, a_step=250, overlap=3)
    assert sorted(steps_found(path, {100, 101}, 5)) == [100] * 250 + [101] * 250


def test_a_resumed_run_that_went_back_is_found_twice(tmp_path: Path) -> None:
    path, again = tmp_path / "events.jsonl", tmp_path / "again.jsonl"
    write_long(path, steps=400, a_step=250)
    write_long(again, steps=400, a_step=250)
    with path.open("ab") as file:
        file.write(again.read_bytes())
    assert steps_found(path, {300}, 2) == [300] * 500


def test_lines_without_a_step_come_from_the_same_stretch(tmp_path: Path) -> None:
    path = tmp_path / "devices.jsonl"
    write_long(path, steps=3, a_step=14)
    found = lines_of_steps(path, {1}, open_together=1, also=b'"DeviceIdled"').lines
    assert sum("step" not in line for line in found) == 6
    assert sum(line.get("step") == 1 for line in found) == 14


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"step":1,"n":1}\n{"step":1,"n":', "utf-8")
    assert lines_of_steps(path, {1}, open_together=1).lines == [{"step": 1, "n": 1}]


def test_what_is_read_is_bounded_and_said_not_to_be_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write_long(path, steps=4, a_step=100)
    found = lines_of_steps(path, {0, 1, 2, 3}, open_together=1, effort=Effort(max_bytes=1000))
    assert (found.lines, found.is_whole) == ([], False)


@settings(max_examples=20)
@given(
    steps=st.integers(1, 30),
    a_step=st.integers(1, 30),
    overlap=st.integers(0, 4),
    first=st.integers(0, 29),
    seed=st.integers(0, 100),
)
def test_nothing_of_the_steps_is_missed(
    tmp_path_factory: pytest.TempPathFactory, steps: int, a_step: int, overlap: int, first: int, seed: int
) -> None:
    path = tmp_path_factory.mktemp("seek") / "events.jsonl"
    write_long(path, steps, a_step, overlap=overlap, seed=seed)
    wanted = {step for step in (first, first + 1) if step < steps}
    effort = Effort(num_probes=16, small_bytes=100)
    assert sorted(steps_found(path, wanted, overlap + 2, effort)) == sorted(
        [step for step in wanted for _ in range(a_step)]
    )
