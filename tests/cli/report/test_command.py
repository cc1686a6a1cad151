"""`rewardflow report`."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from written_runs import write_run

from rewardflow.cli.main import main


def test_a_page_is_written_beside_the_run_and_is_its_owners_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "run")
    assert main(["report", str(tmp_path / "run")]) == 0
    page = tmp_path / "run" / "report.html"
    assert page.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert str(page) in capsys.readouterr().out
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "other.html"), "--no-rollouts"]) == 0
    assert "Left out of this page" in (tmp_path / "other.html").read_text("utf-8")


def test_two_runs_are_compared(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name)
    out = tmp_path / "c.html"
    assert main(["report", "--compare", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(out)]) == 0
    assert "a and b" in out.read_text("utf-8")


def test_a_trace_is_written_for_some_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "run")
    trace = tmp_path / "t.json"
    assert main(["report", str(tmp_path / "run"), "--trace", str(trace), "--steps", "1:2"]) == 0
    assert json.loads(trace.read_text("utf-8"))["traceEvents"]
    assert "steps 1 to 2" in capsys.readouterr().out


def test_figures_are_printed_for_programs_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_trained"] == 3
    assert not (tmp_path / "run" / "report.html").exists()
    assert main(["report", "--compare", str(tmp_path / "run"), str(tmp_path / "run"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 2


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ([], "takes a RUN_DIR, or --compare"),
        (["run", "--compare", "run", "run"], "takes a RUN_DIR, or --compare"),
        (["run", "--steps", "1:2"], "--steps is for a --trace"),
        (["run", "--trace", "t.json", "--steps", "2:1"], "must be A:B with A not above B"),
        (["--compare", "run", "run", "--trace", "t.json"], "--trace is of one run"),
        (["nowhere"], "needs a readable run.json"),
        (["run", "--out", "no/such/folder/x.html"], "must be in a writable folder"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], rule: str
) -> None:
    write_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert main(["report", *arguments]) == 2
    assert rule in capsys.readouterr().err
