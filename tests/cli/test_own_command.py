"""The words that run this program again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rewardflow.cli.own_command import own_command


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "clone" / ".venv" / "bin" / "rewardflow"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(program), "demo"])
    monkeypatch.setenv("PATH", "/nowhere")
    return program


def test_after_make_in_a_clone_it_is_the_path_from_there(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(program.parents[2])
    assert own_command() == ".venv/bin/rewardflow"


def test_elsewhere_it_is_the_whole_path(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (elsewhere := program.parents[3] / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    assert own_command() == str(program)


def test_on_the_path_it_is_the_name(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(program.parent))
    assert own_command() == "rewardflow"


def test_run_as_a_module_it_is_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/__main__.py"])
    assert own_command() == f"{sys.executable} -m rewardflow"
