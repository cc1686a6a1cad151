"""The error about a missing package names the command that installs it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.extras import import_extra, install_command


def test_what_is_installed_is_imported() -> None:
    assert import_extra("json", "retrieval", "a judge") is json


def test_what_is_missing_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bm25s", None)  # how Python marks what cannot be imported
    with pytest.raises(InvalidInput, match=r"a judge needs bm25s: .* -m pip install .*\[retrieval\]"):
        import_extra("bm25s", "retrieval", "a judge")


def test_in_a_clone_the_command_installs_the_clone_again_with_the_extra(tmp_path: Path) -> None:
    clone = tmp_path / "a clone"
    (clone / "src" / "rewardflow").mkdir(parents=True)
    (clone / "pyproject.toml").touch()
    command = install_command("train", clone / "src" / "rewardflow")
    assert shlex.split(command) == [sys.executable, "-m", "pip", "install", "-e", f"{clone}[train]"]
    (clone / "constraints.txt").touch()
    command = install_command("train", clone / "src" / "rewardflow")
    assert shlex.split(command)[4:] == ["-c", f"{clone}/constraints.txt", "-e", f"{clone}[train]"]


def test_elsewhere_it_installs_the_package(tmp_path: Path) -> None:
    command = install_command("train", tmp_path / "site-packages" / "rewardflow")
    assert shlex.split(command) == [sys.executable, "-m", "pip", "install", "rewardflow[train]"]


def test_here_it_names_this_clone_and_its_versions() -> None:
    root = Path(__file__).resolve().parent.parent
    assert shlex.split(install_command("ray"))[-3:] == [f"{root}/constraints.txt", "-e", f"{root}[ray]"]
