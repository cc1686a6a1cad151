"""The command line as a whole: help, arguments, and what it loads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rewardflow.cli.main import COMMANDS, build_parser, main

ROOT = Path(__file__).resolve().parents[2]


# ---- help and arguments -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [[], *([command.name] for command in COMMANDS)], ids=" ".join)
def test_help_has_an_example_that_parses(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*command, "--help"])
    assert stop.value.code == 0
    examples = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  rewardflow ")]
    assert examples
    for _, *arguments in examples:
        assert callable(build_parser().parse_args(arguments).run)


@pytest.mark.parametrize("command", [["judge", "test"], *([command.name] for command in COMMANDS)], ids=" ".join)
def test_help_fits_a_terminal_of_80_columns(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([*command, "--help"])
    lines = capsys.readouterr().out.splitlines()
    commands = ("  rewardflow ", "  bash ", "  zsh ", "  fish ")  # lines to copy stay whole
    assert [line for line in lines if len(line) > 80 and not line.startswith(commands)] == []


@pytest.mark.parametrize("command", ["ls", "show", "export", "vacuum"])
def test_commands_of_commands_have_help_too(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["journal", command, "--help"])
    assert stop.value.code == 0
    assert "PATH" in capsys.readouterr().out


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith("rewardflow ")


@pytest.mark.parametrize("arguments", [["nonsense"], ["demo", "--nonsense"], ["bench", "nonsense"]], ids=" ".join)
def test_what_is_no_command_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage: rewardflow" in capsys.readouterr().err


def test_the_command_alone_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    said = capsys.readouterr().out
    assert "usage: rewardflow" in said
    assert "train a policy with a reward" in said


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["trian"], "there is no command 'trian'; did you mean 'train'?"),
        (["journal", "lst"], "there is no command 'lst'; did you mean 'ls'?"),
        (["zzzz"], "there is no command 'zzzz'; there are init, demo, score, train, "),
    ],
)
def test_a_mistyped_command_gets_the_nearest_one(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "command", "told"),
    [
        (["train", "--chekc"], "train", "there is no option '--chekc'; did you mean '--check'?"),
        (
            ["train", "run.yaml", "steps=3", "--memroy=80"],
            "train",
            "there is no option '--memroy'; did you mean '--mem",
        ),
        (["journal", "ls", "x", "--faild"], "journal ls", "there is no option '--faild'; did you mean '--failed'?"),
        (["demo", "--zzzz"], "demo", "there is no option '--zzzz'; rewardflow demo --help lists them"),
        (["watch", "runs", "more"], "watch", "there is no place for 'more'"),
        (["bench", "lerning"], "bench", "there is no choice 'lerning'; did you mean 'learning'?"),
        (["init", "--case", "jugde"], "init", "argument --case: there is no choice 'jugde'; did you mean 'judge'?"),
        (["bench", "zzzz"], "bench", "there is no choice 'zzzz'; there are agent, judge, "),
    ],
)
def test_a_mistyped_option_or_choice_gets_the_usage_of_its_command_and_the_nearest_one(
    arguments: list[str], command: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"usage: rewardflow {command} [")
    assert told in said


@pytest.mark.parametrize("arguments", [["journal"], ["judge"], ["agent"], ["convert"], ["journal", "-v"]], ids=" ".join)
def test_a_command_of_commands_alone_shows_its_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 0
    assert f"usage: rewardflow {arguments[0]} [-h]" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["-v", "demo"], ["demo", "-v"], ["journal", "-v", "ls", "x"], ["journal", "ls", "x", "-v"]]
)
def test_common_options_stand_before_or_after_the_command(arguments: list[str]) -> None:
    assert build_parser().parse_args(arguments).verbose == 1


# ---- what it loads ------------------------------------------------------------------------------------------------

HEAVY = {"aiohttp", "asyncio", "dataclasses", "orjson", "ray", "rich", "torch", "yaml"}
ALL_HELP = """
import contextlib, io
from rewardflow.cli.main import COMMANDS, build_parser
for command in COMMANDS:
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        build_parser().parse_args([command.name, "--help"])
"""


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh interpreter has after the code."""
    code = f"import sys\n{code}\nsys.stderr.write(' '.join(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return set(result.stderr.split())


def help_of(*words: str) -> str:
    return (
        "import contextlib\nfrom rewardflow.cli.main import main\n"
        f"with contextlib.suppress(SystemExit):\n    main({[*words, '--help']!r})"
    )


def test_the_help_loads_the_table_of_commands_and_nothing_else() -> None:
    loaded = loaded_by(help_of())
    assert loaded & HEAVY == set()
    assert {name for name in loaded if name.startswith("rewardflow")} == {
        "rewardflow",
        "rewardflow.cli",
        "rewardflow.cli.command_table",
        "rewardflow.cli.main",
    }


def test_a_command_loads_its_own_module_and_no_other_commands() -> None:
    loaded = loaded_by(help_of("journal"))
    assert loaded & {command.module for command in COMMANDS} == {"rewardflow.cli.journal"}


def test_rich_and_torch_are_loaded_only_when_something_is_drawn_or_computed() -> None:
    assert loaded_by(ALL_HELP) & {"rich", "torch", "ray", "pyarrow", "transformers"} == set()
