"""A run as its directory tells it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from written_runs import write_lines, write_run

from rewardflow.errors import InvalidInput
from rewardflow.observe.run_directory import RunDirectory
from rewardflow.report.run_data import read_run


def test_a_run_that_goes_on_or_was_killed_is_open_and_one_that_closed_is_finished(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run")
    assert read_run(directory.path).state == "open"
    write_lines(directory.events_path, [{"v": 1, "event": "AgentClosed", "at_s": 200.0}])
    assert read_run(directory.path).state == "finished"


def test_settings_tell_the_plan_and_how_many_steps_are_open_together(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", steps=2).path)
    assert (run.name, run.planned_steps, run.open_together) == ("run", 2, 3)
    assert run.agent_settings == {"run": "default"}


def test_a_run_that_has_written_nothing_has_no_steps(tmp_path: Path) -> None:
    run = read_run(RunDirectory.create(tmp_path / "run").path)
    assert (run.steps, run.state, run.last_written_at, run.planned_steps) == ((), "open", None, None)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"needs a readable run\.json"):
        read_run(tmp_path)


def test_a_run_of_a_later_schema_is_refused_by_its_version(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run")
    run = {"schema_version": 2, "name": "x", "started_at": 0.0, "rewardflow_version": "9.0"}
    (directory.path / "run.json").write_text(json.dumps(run), "utf-8")
    with pytest.raises(InvalidInput, match=r"schema version of at most 1, got 2 .* written by rewardflow 9\.0"):
        read_run(directory.path)


@pytest.mark.parametrize("text", ["[1]", '{"steps":'])
def test_settings_that_are_no_object_are_refused(tmp_path: Path, text: str) -> None:
    directory = write_run(tmp_path / "run")
    (directory.path / "settings.json").write_text(text, "utf-8")
    with pytest.raises(InvalidInput, match=r"settings\.json must be a JSON object"):
        read_run(directory.path)
