"""`rewardflow plan`: the command, as people type it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rewardflow.cli.main import main

SMALL = (
    "prompts=8",
    "responses=2",
    "simulated_steps=11",
    "device={generation_s: 10, update_s: 10}",
    "--slots",
    "4",
    "--latency",
    "uniform:1,9",
    "--processes",
    "1",
)


def test_a_plan_without_a_file_shows_every_schedule_and_one_recommendation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *SMALL]) == 0
    told = capsys.readouterr().out
    assert "staleness_4" in told
    assert "Floor of a step" in told
    assert "slots instead of 4" in told
    assert "max_staleness" in told


def test_json_is_all_there_is_on_stdout_and_the_page_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "plan.html"
    assert main(["plan", *SMALL, "--as-original", "--json", "--html", str(page)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["schedule"] for row in told["as_original"]] == [
        "synchronous",
        "pipeline",
        "one_step",
        "pipeline_one_step",
    ]
    assert len(told["schedules"]) == 8
    assert page.read_text().startswith("<!doctype html>")


def test_a_file_comes_first_and_flags_go_before_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("prompts: 8\nresponses: 2\nsimulated_steps: 11\ndevice: {generation_s: 10, update_s: 10}\n")
    assert main(["plan", str(file), "service.latency=constant:2", "--update-s", "30", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["floor_s"] == pytest.approx(40.0)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([*SMALL, "--slots", "0"], "slots must be a whole number of at least 1"),
        (["nothing.yaml"], "nothing.yaml: the file must exist"),
        ([], "prompts, device must be given"),
        ([*SMALL, "--processes", "0"], "--processes must be at least 1"),
        ([*SMALL, "--html", "/nowhere/plan.html"], "in a folder that exists, got /nowhere/plan.html"),
        ([*SMALL, "--html", "/"], "--html must name a file, got the folder /"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
