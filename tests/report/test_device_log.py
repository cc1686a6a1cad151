"""What devices did during a few steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from written_runs import device_events, write_lines

from rewardflow.observe.events import DeviceWorked, to_json
from rewardflow.report.device_log import lanes_between, read_device_log


def write_steps(path: Path, steps: int) -> Path:
    write_lines(path, [to_json(event) for step in range(steps) for event in device_events(step)])
    return path


def test_work_and_waiting_of_the_steps_and_their_neighbours_are_read(tmp_path: Path) -> None:
    pieces = read_device_log(write_steps(tmp_path / "devices.jsonl", 9), [4], open_together=1)
    assert {piece.step for piece in pieces} == {3, 4, 5, None}
    assert [(piece.kind, piece.started_s, piece.ended_s) for piece in pieces if piece.step == 4] == [
        ("generate", 140.0, 144.0),
        ("update", 147.0, 149.0),
    ]


def test_lanes_hold_what_touches_the_time(tmp_path: Path) -> None:
    pieces = read_device_log(write_steps(tmp_path / "devices.jsonl", 9), [4], open_together=1)
    (lane,) = lanes_between(pieces, 140.0, 150.0)
    assert lane.name == "gpu"
    assert [(span.kind, span.detail) for span in lane.spans] == [
        ("generate", "step 4"),
        ("reward", ""),
        ("update", "step 4"),
    ]


def test_of_a_resumed_run_the_last_session_counts(tmp_path: Path) -> None:
    path = write_steps(tmp_path / "devices.jsonl", 3)
    again = DeviceWorked(at_s=8.0, device="gpu", work="update", step=2, started_s=5.0)
    write_lines(path, [to_json(again)])
    assert [piece.started_s for piece in read_device_log(path, [2], open_together=1)] == [5.0]


def test_a_line_without_times_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "devices.jsonl"
    write_lines(path, [{"v": 1, "event": "DeviceWorked", "step": 0, "work": "update", "at_s": None, "started_s": None}])
    assert read_device_log(path, [0], open_together=1) == []


@pytest.mark.parametrize("open_together", [10**16, 10**30])
def test_a_run_that_says_that_all_its_steps_were_open_together_is_read_at_once(
    tmp_path: Path, open_together: int
) -> None:
    """A stranger's settings say so; looking through that many steps would never end."""
    pieces = read_device_log(write_steps(tmp_path / "devices.jsonl", 9), [4], open_together=open_together)
    assert {piece.step for piece in pieces} == {3, 4, 5, 6, 7, 8, None}
