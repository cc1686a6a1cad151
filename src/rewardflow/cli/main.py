"""The command `rewardflow`: finds the command, runs it, and turns how it ended into an exit code.

Always true: a mistake of the caller is one line on stderr and exit code 2, never a traceback (unless `--traceback` asks
for it); an interrupt, by Ctrl-C or SIGTERM, closes everything in order and is exit code 130; a reader that went away is
not an error worth a word.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from rewardflow.cli import (
    agent,
    bench,
    convert,
    evaluate,
    export,
    journal,
    mock_judge,
    plan,
    report,
    verl,
)
from rewardflow.cli.demo import command as demo
from rewardflow.cli.display import logging_to_stderr, safe
from rewardflow.cli.score import command as score
from rewardflow.cli.train import command as train
from rewardflow.errors import RewardflowError
from rewardflow.observe.run_directory import own_version

WRONG_USE = 2
INTERRUPTED = 128 + signal.SIGINT
BROKEN_PIPE = 128 + 13  # SIGPIPE, which not every platform names


@dataclass(frozen=True, slots=True)
class Command:
    """One command, as its module brings it."""

    name: str
    add_parser: Callable[[argparse._SubParsersAction[argparse.ArgumentParser]], None]
    run: Callable[[argparse.Namespace], int]
    example: str


COMMANDS = (
    Command("demo", demo.add_parser, demo.run, "rewardflow demo --steps 40"),
    Command(
        "score",
        score.add_parser,
        score.run,
        "rewardflow score answers.jsonl --reward judge.yaml --out verdicts.jsonl",
    ),
    Command("train", train.add_parser, train.run, "rewardflow train run.yaml --check trainer.lr=1e-5"),
    Command(
        "plan", plan.add_parser, plan.run, "rewardflow plan examples/original.yaml service.slots=512 --html plan.html"
    ),
    Command("agent", agent.add_parser, agent.run, "rewardflow agent start judge.yaml --rpm 600 --env OPENAI_API_KEY"),
    Command("eval", evaluate.add_parser, evaluate.run, "rewardflow eval run.yaml --checkpoint best"),
    Command("verl", verl.add_parser, verl.run, "rewardflow verl data.train_files=train.parquet --dry-run"),
    Command("export", export.add_parser, export.run, "rewardflow export runs/digits digits-model --dtype bfloat16"),
    Command("report", report.add_parser, report.run, "rewardflow report runs/digits --trace digits.trace.json"),
    Command("journal", journal.add_parser, journal.run, "rewardflow journal ls run.db --failed"),
    Command(
        "mock-judge",
        mock_judge.add_parser,
        mock_judge.run,
        "rewardflow mock-judge --latency uniform:1,40 --faults 429=0.05,hang=0.01 --scale 0.1",
    ),
    Command(
        "convert",
        convert.add_parser,
        convert.run,
        "rewardflow convert gsm8k train.jsonl train.parquet",
    ),
    Command("bench", bench.add_parser, bench.run, "rewardflow bench agent --quick"),
)


class _Parser(argparse.ArgumentParser):
    """Takes the common options before and after the command's name; argparse makes subparsers of the same class."""

    _is_parsing = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, **options})
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
        """Lets options stand between the words of a list, which argparse takes for the list's end."""
        has_list = any(action.nargs == "*" and not action.option_strings for action in self._actions)
        if self._is_parsing or not has_list:
            return super().parse_known_args(args, namespace)
        self._is_parsing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_parsing = False


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; what it parses has `run`, the function to call with it."""
    parser: argparse.ArgumentParser = _Parser(
        prog="rewardflow",
        description="Reinforcement learning of language models with slow, unreliable, paid rewards.",
        epilog=_examples(*(command.example for command in COMMANDS)),
    )
    parser.add_argument("--version", action="version", version=f"rewardflow {own_version()}")
    subparsers = parser.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(subparsers)
        own = subparsers.choices[command.name]
        own.set_defaults(run=command.run)
        own.epilog = own.epilog or _examples(command.example)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    _open_what_is_closed()
    if not sys.stderr.isatty():  # read when transformers is imported; its bars are no lines
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    args = build_parser().parse_args(argv)
    with logging_to_stderr(getattr(args, "verbose", 0)), _sigterm_as_interrupt():
        try:
            code: int = args.run(args)
            sys.stdout.flush()
            return code
        except (Exception, KeyboardInterrupt, asyncio.CancelledError) as error:
            return exit_code_of(error, shows_traceback=getattr(args, "traceback", False))


def exit_code_of(error: BaseException, *, shows_traceback: bool = False) -> int:
    """Tell what went wrong. What is nobody's mistake but ours is raised again."""
    cause = _cause_of(error)
    match cause:
        case BrokenPipeError():
            _drop_stdout()
            return BROKEN_PIPE
        case KeyboardInterrupt() | asyncio.CancelledError():  # how Ctrl-C leaves some event loops
            message, code = "interrupted", INTERRUPTED
        case RewardflowError():
            message, code = str(cause), WRONG_USE
        case OSError() if cause.filename is not None:
            message, code = f"{cause.filename}: {cause.strerror}", WRONG_USE
        case OSError(errno=errno.ENOSPC):  # without a name: stdout or stderr, where they go to a file
            _drop_stdout()
            message, code = f"what was to be shown could not be written: {cause.strerror}", WRONG_USE
        case _:
            raise error
    with contextlib.suppress(OSError):  # nobody can be told
        if shows_traceback:
            sys.stderr.write(safe("".join(traceback.format_exception(error))))
        sys.stderr.write(f"rewardflow: {safe(message)}\n")
    return code


def _cause_of(error: BaseException) -> BaseException:
    """What task groups wrapped, if one cause explains it: of what failed together, the first that says why."""
    causes = [leaf for leaf in _leaves(error) if not isinstance(leaf, asyncio.CancelledError)]
    interrupts = [leaf for leaf in causes if isinstance(leaf, KeyboardInterrupt)]
    if interrupts or not causes:
        return next(iter(interrupts or _leaves(error)))
    is_explained = len(causes) == 1 or all(isinstance(leaf, RewardflowError) for leaf in causes)
    return causes[0] if is_explained else error


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for inner in error.exceptions:
        yield from _leaves(inner)


def _open_what_is_closed() -> None:
    """Started with `>&-` there is no stdout at all. What is opened stays open as long as the process."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _drop_stdout() -> None:
    """The interpreter flushes stdout once more at its end, and would complain then."""
    with contextlib.suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only that one may set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _interrupt(_: int, frame: FrameType | None) -> None:
    """What Ctrl-C does now: an event loop has its own way. A shell's background job ignores Ctrl-C, but must end."""
    handler = signal.getsignal(signal.SIGINT)
    (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)


def _examples(*lines: str) -> str:
    return "\n".join([f"example{'s' if len(lines) > 1 else ''}:", *(f"  {line}" for line in lines)])
