"""The words that completion knows: those of the parsers, each where it belongs."""

from __future__ import annotations

import pytest

from rewardflow.cli.command_table import COMMANDS
from rewardflow.cli.main import main
from rewardflow.cli.setup.completion import command_words
from rewardflow.cli.setup.completion_scripts import CommandWords


@pytest.fixture(scope="module")
def words() -> dict[str, CommandWords]:
    return {one.path: one for one in command_words()}


def test_every_command_is_there_in_every_shell(
    words: dict[str, CommandWords], capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(words[""].subcommands) == [command.name for command in COMMANDS]
    for shell in ("bash", "zsh", "fish"):
        assert main(["completion", shell]) == 0
        script = capsys.readouterr().out
        assert all(command.name in script for command in COMMANDS)


def test_the_options_of_a_subcommand_belong_to_it_alone(words: dict[str, CommandWords]) -> None:
    names = {path: {option.name for option in one.options} for path, one in words.items()}
    assert "--print-config" in names["/train"]
    assert "--answers" in names["/demo/agent"]
    assert "--answers" not in names["/demo"]
    assert "--failed" in names["/journal/ls"]
    assert "--failed" not in names["/journal/show"]
    assert all({"--help", "--verbose", "--traceback"} <= one for one in names.values())


def test_an_option_knows_its_choices_and_whether_it_takes_a_value(words: dict[str, CommandWords]) -> None:
    (case,) = (option for option in words["/init"].options if option.name == "--case")
    assert case.choices == ("function", "judge", "rule-and-judge")
    takes = {option.name: option.takes_value for option in words["/train"].options}
    assert (takes["--memory"], takes["--check"]) == (True, False)


def test_only_commands_that_take_files_offer_them(words: dict[str, CommandWords]) -> None:
    assert words["/train"].takes_files
    assert not words["/journal"].takes_files
    assert not words["/completion"].takes_files
