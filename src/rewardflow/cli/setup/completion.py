"""`rewardflow completion`: prints a script that completes commands, options and settings in bash, zsh or fish.

Always true: the script is made from the argument parsers themselves, so that it knows every command, option and key of
a run file, and nothing that does not exist.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from rewardflow.cli.command_table import COMMANDS
from rewardflow.settings.run_keys import keys

SHELLS = ("bash", "zsh", "fish")
_TAKES_KEYS = ("train", "eval")


@dataclass(frozen=True, slots=True)
class CommandWords:
    """What may follow a command: its options with their help, and the words of its subcommands."""

    help: str
    options: Mapping[str, str]
    words: tuple[str, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Prints a script for your shell; where it goes:\n\n"
        "  bash   rewardflow completion bash > ~/.local/share/bash-completion/completions/rewardflow\n"
        "  zsh    rewardflow completion zsh > ~/.zfunc/_rewardflow      (a folder of your fpath)\n"
        "  fish   rewardflow completion fish > ~/.config/fish/completions/rewardflow.fish"
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell to complete in")


def run(args: argparse.Namespace) -> int:
    commands = command_words()
    match args.shell:
        case "bash":
            script = bash_script(commands)
        case "zsh":
            script = "#compdef rewardflow\nautoload -U +X bashcompinit && bashcompinit\n" + bash_script(commands)
        case _:
            script = fish_script(commands)
    sys.stdout.write(script)
    return 0


def command_words() -> dict[str, CommandWords]:
    """Loads every command and asks its parser."""
    from importlib import import_module

    found = {}
    for command in COMMANDS:
        parser = argparse.ArgumentParser(add_help=False)
        import_module(command.module).add_arguments(parser)
        options, words = _words_of(parser)
        options |= {
            "--help": "show this help message",
            "--verbose": "log what happens",
            "--traceback": "show errors whole",
        }
        run_keys = tuple(f"{name}=" for name in keys()) if command.name in _TAKES_KEYS else ()
        found[command.name] = CommandWords(command.help, options, (*words, *run_keys))
    return found


def _words_of(parser: argparse.ArgumentParser) -> tuple[dict[str, str], tuple[str, ...]]:
    options: dict[str, str] = {}
    words: list[str] = []
    for action in parser._actions:
        for option in action.option_strings:
            if option.startswith("--"):
                options[option] = action.help or ""
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                words.append(name)
                inner_options, inner_words = _words_of(inner)
                options |= inner_options
                words += inner_words
        elif action.choices and not action.option_strings:
            words += map(str, action.choices)
    return options, tuple(words)


def bash_script(commands: Mapping[str, CommandWords]) -> str:
    cases = "\n".join(
        f"    {name}) words='{' '.join([*one.options, *one.words])}' ;;" for name, one in commands.items()
    )
    return f"""\
# Completion of rewardflow; made by `rewardflow completion`.
_rewardflow() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} words=''
  # a word may hold '=' and ':', at which bash breaks: put its parts together again
  local line=${{COMP_LINE:0:COMP_POINT}}
  local whole=${{line##*[[:space:]]}}
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{" ".join(commands)} --help --version' -- "$current"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{cases}
  esac
  case $whole in *=*) COMPREPLY=($(compgen -f -- "${{whole#*=}}")); return ;; esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  case $current in -*) ;; *) COMPREPLY+=($(compgen -f -- "$current")) ;; esac
  case ${{COMPREPLY[0]:-}} in *=) compopt -o nospace 2>/dev/null ;; esac
}}
complete -o filenames -F _rewardflow rewardflow
"""


def fish_script(commands: Mapping[str, CommandWords]) -> str:
    lines = ["# Completion of rewardflow; made by `rewardflow completion`."]
    for name, one in commands.items():
        lines.append(f"complete -c rewardflow -n __fish_use_subcommand -f -a {name} -d {_fish_quoted(one.help)}")
        seen = f"-n '__fish_seen_subcommand_from {name}'"
        for option, text in one.options.items():
            lines.append(f"complete -c rewardflow {seen} -l {option[2:]} -d {_fish_quoted(text)}")
        if one.words:
            lines.append(f"complete -c rewardflow {seen} -a {_fish_quoted(' '.join(one.words))}")
    return "\n".join(lines) + "\n"


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", " ").replace("%%", "%")
    return f"'{escaped}'"
