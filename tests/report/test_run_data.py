"""A run as its directory tells it."""

from __future__ import annotations

import json
import os
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


def test_a_run_file_that_is_nested_too_deep_is_refused_like_any_other_that_cannot_be_read(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run")
    (directory.path / "run.json").write_text('{"schema_version":' * 100_000, "utf-8")
    with pytest.raises(InvalidInput, match=r"needs a readable run\.json, got .*: it is nested too deep"):
        read_run(directory.path)


def test_a_run_of_a_later_schema_is_refused_by_its_version(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run")
    run = {"schema_version": 2, "name": "x", "started_at": 0.0, "rewardflow_version": "9.0"}
    (directory.path / "run.json").write_text(json.dumps(run), "utf-8")
    with pytest.raises(InvalidInput, match=r"schema version of at most 1, got 2 .* written by rewardflow 9\.0"):
        read_run(directory.path)


@pytest.mark.parametrize("text", ["[1]", '{"steps":', "[" * 100_000])
def test_settings_that_are_no_object_are_refused(tmp_path: Path, text: str) -> None:
    directory = write_run(tmp_path / "run")
    (directory.path / "settings.json").write_text(text, "utf-8")
    with pytest.raises(InvalidInput, match=r"settings\.json must be a JSON object"):
        read_run(directory.path)


@pytest.mark.parametrize(
    "name",
    [
        *("run.json", "events.jsonl", "steps.jsonl", "metrics.jsonl", "devices.jsonl", "settings.json", "audit.jsonl"),
        *("judge_probes.json", "journal.db", "journal.db-wal", "rollouts", "rejudged"),
    ],
)
def test_a_link_out_of_the_run_directory_is_refused_before_it_is_opened(tmp_path: Path, name: str) -> None:
    path = write_run(tmp_path / "run").path
    secret = tmp_path / "secret"
    (path / name).unlink(missing_ok=True)
    if name in ("rollouts", "rejudged"):
        secret.mkdir()
    else:
        os.mkfifo(secret)  # opening it would hang
    (path / name).symlink_to(secret)
    with pytest.raises(InvalidInput, match=f"only files inside the run directory, got a link out of it: .*{name}"):
        read_run(path)


def test_a_linked_file_of_rollouts_and_a_pipe_are_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run").path
    (path / "rollouts").mkdir()
    (path / "rollouts" / "step_000000.parquet").symlink_to(tmp_path / "run.parquet")
    read_run(path)  # it leads nowhere
    (tmp_path / "run.parquet").touch()
    with pytest.raises(InvalidInput, match=r"a link out of it: .*step_000000\.parquet"):
        read_run(path)
    (path / "rollouts" / "step_000000.parquet").unlink()
    (path / "metrics.jsonl").unlink()
    os.mkfifo(path / "metrics.jsonl")
    with pytest.raises(InvalidInput, match=r"only plain files, got something else: .*metrics\.jsonl"):
        read_run(path)


def test_a_run_directory_that_is_a_link_itself_is_read(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run").path
    (tmp_path / "link").symlink_to(path)
    assert len(read_run(tmp_path / "link").steps) == len(read_run(path).steps)
