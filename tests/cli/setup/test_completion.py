"""Completion in shells, tried in a real bash."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from rewardflow.cli.command_table import COMMANDS
from rewardflow.cli.main import main
from rewardflow.cli.setup.completion import command_words


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "rewardflow.bash"
    from rewardflow.cli.setup import completion

    path.write_text(completion.bash_script(completion.command_words()), "utf-8")
    return path


def completed(script: Path, line: str) -> list[str]:
    """What bash offers at the end of the line."""
    words = line.split(" ")
    listed = " ".join(f"'{word}'" for word in words)
    code = (
        f"source {script}; COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; COMP_LINE='{line}'; "
        'COMP_POINT=${#COMP_LINE}; _rewardflow; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, cwd=script.parent)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("rewardflow tr", ["train"]),
        ("rewardflow train --res", ["--resume"]),
        ("rewardflow train trainer.lr", ["trainer.lr=", "trainer.lr_schedule="]),
        ("rewardflow journal vac", ["vacuum"]),
        ("rewardflow score --max-cost", ["--max-cost-usd"]),
        ("rewardflow completion f", ["fish"]),
        ("rewardflow train rewardflow.b", ["rewardflow.bash"]),
    ],
)
def test_bash_completes_commands_options_keys_and_files(line: str, offered: list[str], bash_script: Path) -> None:
    assert completed(bash_script, line) == offered


def test_every_command_and_option_is_there_in_every_shell(capsys: pytest.CaptureFixture[str]) -> None:
    words = command_words()
    assert list(words) == [command.name for command in COMMANDS]
    assert "--print-config" in words["train"].options
    for shell in ("bash", "zsh", "fish"):
        assert main(["completion", shell]) == 0
        script = capsys.readouterr().out
        assert all(command.name in script for command in COMMANDS)
    assert "-n '__fish_seen_subcommand_from train' -l resume -d 'go on with the run in run_dir" in script


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_the_script_is_sound_bash(bash_script: Path) -> None:
    assert subprocess.run(["bash", "-n", str(bash_script)], check=False).returncode == 0
