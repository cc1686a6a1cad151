"""Completion in shells: tried in a real bash, and in zsh and fish where they are installed."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from rewardflow.cli.setup.completion import command_words
from rewardflow.cli.setup.completion_scripts import SCRIPTS

needs_zsh = pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh")
needs_fish = pytest.mark.skipif(shutil.which("fish") is None, reason="no fish")

COMMAND_LINES = [
    ("rewardflow tr", ["train"]),
    ("rewardflow -v tr", ["train"]),
    ("rewardflow --traceback journal vac", ["vacuum"]),
    ("rewardflow train --res", ["--resume"]),
    ("rewardflow train trainer.lr", ["trainer.lr=", "trainer.lr_schedule="]),
    ("rewardflow score --max-cost", ["--max-cost-usd"]),
    ("rewardflow completion f", ["fish"]),
    ("rewardflow train notes.t", ["notes.txt"]),
    ("rewardflow demo --an", []),
    ("rewardflow demo agent --an", ["--answers"]),
    ("rewardflow journal show --fa", []),
    ("rewardflow journal ls --fa", ["--failed"]),
    ("rewardflow init --case ", ["function", "judge", "rule-and-judge"]),
    ("rewardflow init --case judge --mo", ["--model"]),
    ("rewardflow export --dtype b", ["bfloat16"]),
    ("rewardflow score --out no", ["notes.txt"]),
    ("rewardflow journal n", []),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts of all shells, in a folder with one more file."""
    folder = tmp_path_factory.mktemp("completion")
    for shell, script in SCRIPTS.items():
        (folder / f"rewardflow.{shell}").write_text(script(command_words()), "utf-8")
    (folder / "fpath").mkdir()
    shutil.copy(folder / "rewardflow.zsh", folder / "fpath" / "_rewardflow")
    (folder / "notes.txt").write_text("")
    return folder


def in_bash(folder: Path, line: str, words: list[str] | None = None) -> list[str]:
    """What bash offers at the end of the line, which it has broken into these words."""
    words = words or line.split(" ")
    listed = " ".join(f"'{word}'" for word in words)
    code = (
        f"source rewardflow.bash; COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; COMP_LINE='{line}'; "
        'COMP_POINT=${#COMP_LINE}; _rewardflow; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, cwd=folder)
    return done.stdout.split()


@pytest.mark.parametrize(("line", "offered"), COMMAND_LINES)
def test_bash_completes_commands_options_choices_keys_and_files(line: str, offered: list[str], folder: Path) -> None:
    assert in_bash(folder, line) == offered


def test_bash_completes_what_follows_an_equals_sign(folder: Path) -> None:
    assert in_bash(folder, "rewardflow init --case=r", ["rewardflow", "init", "--case", "=", "r"]) == ["rule-and-judge"]
    assert in_bash(folder, "rewardflow train data.path=no", ["rewardflow", "train", "data.path", "=", "no"]) == [
        "notes.txt"
    ]


@needs_fish
@pytest.mark.parametrize(("line", "offered"), COMMAND_LINES)
def test_fish_completes_commands_options_choices_keys_and_files(line: str, offered: list[str], folder: Path) -> None:
    code = f"source rewardflow.fish; complete -C '{line}'"
    environment = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    done = subprocess.run(["fish", "-c", code], capture_output=True, text=True, cwd=folder, env=environment, check=True)
    assert [told.partition("\t")[0] for told in done.stdout.splitlines()] == offered


def in_zsh(folder: Path, setup: str, typed: str, wanted: str) -> str:
    """What a zsh shows after these keys, read until it has what is wanted; in real time, because zsh lives in it."""
    terminal, inner = pty.openpty()
    environment = {**os.environ, "TERM": "dumb", "PS1": "$ ", "HOME": str(folder)}
    command = ["zsh", "-f", "-i"]
    shown, is_typed, until_s = "", False, time.monotonic() + 20
    with subprocess.Popen(
        command, stdin=inner, stdout=inner, stderr=inner, cwd=folder, env=environment, start_new_session=True
    ) as zsh:
        try:
            # the quotes keep the echo of this line from looking like its output
            os.write(terminal, f"unsetopt beep; {setup}; echo rea''dy\n".encode())
            while time.monotonic() < until_s and wanted not in shown:
                if select.select([terminal], [], [], 0.1)[0]:
                    shown += os.read(terminal, 65536).decode(errors="replace")
                if not is_typed and "$ " in shown.partition("ready\r\n")[2]:
                    os.write(terminal, typed.encode())
                    shown, is_typed = "", True
        finally:
            zsh.kill()
            os.close(terminal)
            os.close(inner)
    return shown


FPATH = "fpath=($PWD/fpath $fpath); autoload -Uz compinit; compinit -u -D"


@needs_zsh
@pytest.mark.parametrize(
    ("setup", "typed", "wanted"),
    [
        (FPATH, "rewardflow -v tr\t", "rewardflow -v train "),
        (FPATH, "rewardflow init --case \t", "rule-and-judge"),
        (FPATH, "rewardflow init --case=r\t", "--case=rule-and-judge"),
        (FPATH, "rewardflow journal ls --fa\t", "--failed"),
        ("autoload -Uz compinit; compinit -u -D; source rewardflow.zsh", "rewardflow comple\t", "completion"),
    ],
)
def test_zsh_completes_with_the_first_tab(setup: str, typed: str, wanted: str, folder: Path) -> None:
    assert wanted in in_zsh(folder, setup, typed, wanted)


@pytest.mark.parametrize(
    "shell", ["bash", pytest.param("zsh", marks=needs_zsh), pytest.param("fish", marks=needs_fish)]
)
def test_the_scripts_are_sound(shell: str, folder: Path) -> None:
    assert subprocess.run([shell, "-n", str(folder / f"rewardflow.{shell}")], check=False).returncode == 0
