"""The command `rewardflow`: parses the command line and runs the command that it names.

Always true: `rewardflow --help` loads no command's module; a command loads its own and no other.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from rewardflow.cli.command_table import COMMANDS, Command

_COMMON_WORDS = ("-v", "-vv", "--verbose", "--traceback")


class _HelpFormatter(argparse.HelpFormatter):
    """Fits prose to the width of the terminal; leaves indented lines, which are examples, as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = []
        for is_prose, group in itertools.groupby(text.splitlines(), lambda line: line[:1].strip() != ""):
            lines = list(group)
            filled += [super()._fill_text(" ".join(lines), width, indent)] if is_prose else lines
        return "\n".join(filled)


class _Parser(argparse.ArgumentParser):
    """Takes the common options before and after the command's name, and a command's own arguments when it is used.

    argparse makes the parsers of subcommands from the same class.
    """

    def __init__(self, *, command: Command | None = None, **options: Any) -> None:
        super().__init__(**{"formatter_class": _HelpFormatter, **options})
        self._unloaded = command
        self._is_parsing = False
        # SUPPRESS: a subparser's default would undo what was given before the command's name.
        common = self.add_argument_group("common options")
        common.add_argument(
            "-v",
            "--verbose",
            action="count",
            default=argparse.SUPPRESS,
            help="log what happens to stderr; -vv logs everything",
        )
        common.add_argument(
            "--traceback", action="store_true", default=argparse.SUPPRESS, help="show where an error came from"
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses the words of a command. Its own parser says what is wrong with them, not that of `rewardflow`."""
        if self._is_parsing:  # argparse parses the words of a list in two passes, of which the first knows no list
            return super().parse_known_args(args, namespace)
        self._load_command()
        if args is not None and all(word in _COMMON_WORDS for word in args) and self._needs_subcommand():
            self.print_help()
            self.exit()
        parsed, unknown = self._parse(args, namespace)
        if unknown:
            self.error(self._why_unknown(unknown[0]))
        return parsed, unknown

    def _parse(self, args: Any, namespace: Any) -> Any:
        """Allows options between the words of a list; argparse alone would end the list at the first option."""
        if not any(action.nargs == "*" and not action.option_strings for action in self._actions):
            return super().parse_known_args(args, namespace)
        self._is_parsing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_parsing = False

    def _needs_subcommand(self) -> bool:
        return any(isinstance(action, argparse._SubParsersAction) and action.required for action in self._actions)

    def _why_unknown(self, word: str) -> str:
        if not word.startswith("-"):
            return f"there is no place for {word!r}"
        name = word.partition("=")[0]
        options = [option for action in self._actions for option in action.option_strings]
        return f"there is no option {name!r}{_nearest(name, options, f'; {self.prog} --help lists them')}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Suggests the nearest command or choice for one that does not exist."""
        if action.choices is None or value in action.choices:
            return
        names = [str(choice) for choice in action.choices]
        hint = _nearest(str(value), names, f"; there are {', '.join(names)}")
        is_command = isinstance(action, argparse._SubParsersAction)
        told = f"there is no command {value!r}" if is_command else f"there is no choice {value!r}"
        raise argparse.ArgumentError(None if is_command else action, f"{told}{hint}")

    def _load_command(self) -> None:
        command, self._unloaded = self._unloaded, None
        if command is not None:
            module = import_module(command.module)
            module.add_arguments(self)
            self.set_defaults(run=module.run)
            self.epilog = self.epilog or _examples(command.example)


def _nearest(word: str, known: Sequence[str], otherwise: str) -> str:
    """Returns a hint: the known word that was probably meant."""
    import difflib

    found = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {found[0]!r}?" if found else otherwise


class _ShowVersion(argparse.Action):
    """Looks the version up only when somebody asks: that reads the metadata of installed packages."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        from rewardflow.observe.run_directory import own_version

        sys.stdout.write(f"rewardflow {own_version()}\n")
        parser.exit()


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line; `run` of its result is the command's function."""
    parser: argparse.ArgumentParser = _Parser(
        prog="rewardflow",
        description="Reinforcement learning of language models with slow, unreliable, paid rewards.",
        epilog=_examples(*(command.example for command in COMMANDS)),
    )
    parser.add_argument(
        "--version",
        action=_ShowVersion,
        nargs=0,
        dest=argparse.SUPPRESS,
        default=argparse.SUPPRESS,
        help="show program's version number and exit",
    )
    subparsers = parser.add_subparsers(title="commands", dest="command", required=False, metavar="COMMAND")
    for command in COMMANDS:
        subparsers.add_parser(command.name, help=command.help, command=command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    _open_closed_streams()
    if not sys.stderr.isatty():  # transformers reads it when it is imported; progress bars garble log files
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 0
    from rewardflow.cli.command_run import run_command  # loads asyncio, which `--help` does not need

    return run_command(args)


def _open_closed_streams() -> None:
    """A process started with `>&-` has no stdout. Opens the null device instead, for as long as the process lives."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _examples(*lines: str) -> str:
    return "\n".join([f"example{'s' if len(lines) > 1 else ''}:", *(f"  {line}" for line in lines)])
