"""Stretches that are shown moment by moment."""

from __future__ import annotations

from pathlib import Path

from written_runs import metrics_line, totals_line, write_lines, write_run

from rewardflow.observe.run_directory import DEVICES_FILE
from rewardflow.report.detail import stretches_of, timeline_of
from rewardflow.report.run_data import read_run


def test_the_beginning_the_slowest_and_the_latest_steps_are_shown(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", steps=9)
    write_lines(directory.metrics_path, [metrics_line(4, duration_s=99.0)])
    stretches = stretches_of(read_run(directory.path).steps)
    assert [[row.step for row in stretch.rows] for stretch in stretches] == [[0, 1], [4], [6, 7, 8]]


def test_steps_of_a_run_that_went_on_with_another_clock_are_not_drawn_on_one_axis(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", steps=9)
    write_lines(directory.steps_path, [totals_line(9, began_s=3.0)])
    write_lines(directory.metrics_path, [metrics_line(9, ended_s=13.0)])
    run = read_run(directory.path)
    stretches = stretches_of(run.steps)
    assert [[row.step for row in stretch.rows] for stretch in stretches[::2]] == [[0, 1], [9]]
    pictures = [timeline_of(run, stretch) for stretch in stretches]
    assert [None if one is None else one.ended_s - one.started_s for one in pictures] == [20.0, 10.0, 10.0]
    assert [[load.name for load in one.loads] for one in pictures if one is not None][-1] == ["step 9"]


def test_a_short_run_is_shown_once(tmp_path: Path) -> None:
    (stretch,) = stretches_of(read_run(write_run(tmp_path / "run", steps=2).path).steps)
    assert [row.step for row in stretch.rows] == [0, 1]
    assert stretches_of([]) == []


def test_a_timeline_has_the_devices_work_and_the_calls_beneath(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", steps=2).path)
    picture = timeline_of(run, stretches_of(run.steps)[0])
    assert picture is not None
    assert (picture.started_s, picture.ended_s) == (100.0, 120.0)
    assert [span.kind for lane in picture.lanes for span in lane.spans] == ["generate", "reward", "update"] * 2
    assert [load.name for load in picture.loads] == ["step 0", "step 1"]
    assert [(mark.name, mark.at_s) for mark in picture.marks] == [("step 0", 110.0), ("step 1", 120.0)]


def test_without_a_log_of_devices_the_seconds_of_each_kind_stand_in_a_row(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", steps=1)
    (directory.path / DEVICES_FILE).unlink()
    run = read_run(directory.path)
    picture = timeline_of(run, stretches_of(run.steps)[0])
    assert picture is not None
    spans = [(span.kind, span.ended_s - span.started_s) for span in picture.lanes[0].spans]
    assert spans == [("generate", 4.0), ("update", 2.0), ("reward", 3.0), ("other", 1.0)]


def test_without_a_trainer_the_calls_alone_are_shown(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", steps=1, with_trainer=False).path)
    picture = timeline_of(run, stretches_of(run.steps)[0])
    assert picture is not None
    assert (picture.lanes, len(picture.loads)) == ((), 1)
    assert (picture.started_s, picture.ended_s) == (101.0, 106.0)
