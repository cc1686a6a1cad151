"""`rewardflow completion`: prints a script that completes commands, options and settings in bash, zsh or fish.

Always true: the script is made from the argument parsers themselves, so that it knows every command, option and key of
a run file, and nothing that does not exist.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from rewardflow.cli.command_table import COMMANDS
from rewardflow.cli.setup.completion_scripts import SCRIPTS, CommandWords, Option
from rewardflow.settings.run_keys import keys

_TAKES_KEYS = ("train", "eval")
_COMMON = (
    Option("--help", "show this help message"),
    Option("--verbose", "log what happens to stderr"),
    Option("--traceback", "show where an error came from"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Prints a script for your shell; where it goes:\n\n"
        "  bash   rewardflow completion bash > ~/.local/share/bash-completion/completions/rewardflow\n"
        "  zsh    rewardflow completion zsh > ~/.zfunc/_rewardflow      (a folder of your fpath)\n"
        "  fish   rewardflow completion fish > ~/.config/fish/completions/rewardflow.fish"
    )
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="the shell to complete in")


def run(args: argparse.Namespace) -> int:
    sys.stdout.write(SCRIPTS[args.shell](command_words()))
    return 0


def command_words() -> list[CommandWords]:
    """Loads every command and asks its parser; the first is `rewardflow` itself."""
    from importlib import import_module

    commands = {command.name: command.help for command in COMMANDS}
    found = [CommandWords(path="", options=(Option("--version", "show the version"), *_COMMON), subcommands=commands)]
    for command in COMMANDS:
        parser = argparse.ArgumentParser(add_help=False)
        import_module(command.module).add_arguments(parser)
        run_keys = tuple(f"{name}=" for name in keys()) if command.name in _TAKES_KEYS else ()
        found += _words_of(parser, f"/{command.name}", run_keys)
    return found


def _words_of(parser: argparse.ArgumentParser, path: str, run_keys: tuple[str, ...] = ()) -> Iterator[CommandWords]:
    """Yields the words of a command, then those of its subcommands."""
    options: list[Option] = []
    subcommands: dict[str, str] = {}
    inner: dict[str, argparse.ArgumentParser] = {}
    choices: list[str] = []
    takes_files = False
    for action in parser._actions:
        given = tuple(map(str, action.choices or ()))
        if isinstance(action, argparse._SubParsersAction):
            inner = dict(action.choices)
            subcommands = {name: "" for name in inner}
            subcommands |= {told.dest: _text(told.help) for told in action._choices_actions}
        elif action.option_strings:
            long = [name for name in action.option_strings if name.startswith("--")]
            options += [Option(name, _text(action.help), action.nargs != 0, given) for name in long]
        else:
            choices += given
            takes_files = takes_files or not given
    known = {option.name for option in options}
    yield CommandWords(
        path=path,
        options=(*options, *(option for option in _COMMON if option.name not in known)),
        subcommands=subcommands,
        choices=tuple(choices),
        keys=run_keys,
        takes_files=takes_files,
    )
    for name, one in inner.items():
        yield from _words_of(one, f"{path}/{name}")


def _text(help_text: str | None) -> str:
    return " ".join((help_text or "").replace("%%", "%").split())
