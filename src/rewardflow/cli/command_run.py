"""Runs a parsed command and turns its end into an exit code.

Always true: a mistake of the caller is one line on stderr and exit code 2, never a traceback (unless `--traceback` asks
for it); a run in which nothing is scored is exit code 3; an interrupt, by Ctrl-C or SIGTERM, closes everything in order
and is exit code 130; a reader of stdout that goes away is exit code 141 without a message.
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
from collections.abc import Iterator
from types import FrameType, TracebackType

from rewardflow.cli.display import logging_to_stderr
from rewardflow.cli.safe_text import safe
from rewardflow.errors import NothingScored, RewardflowError

WRONG_USE = 2
MANY_FAILED = 3
INTERRUPTED = 128 + signal.SIGINT
BROKEN_PIPE = 128 + 13  # SIGPIPE; not every platform has the name


def run_command(args: argparse.Namespace) -> int:
    """Calls `args.run` with the log on stderr and returns the exit code."""
    with logging_to_stderr(getattr(args, "verbose", 0)), _sigterm_as_interrupt():
        try:
            code: int = args.run(args)
            sys.stdout.flush()
            return code
        except (Exception, KeyboardInterrupt, asyncio.CancelledError) as error:
            return exit_code_of(error, shows_traceback=getattr(args, "traceback", False))


def exit_code_of(error: BaseException, *, shows_traceback: bool = False) -> int:
    """Writes what went wrong to stderr and returns the exit code. Raises the error again if it is a bug of ours."""
    cause = _cause_of(error)
    match cause:
        case BrokenPipeError():
            _drop_stdout()
            return BROKEN_PIPE
        case KeyboardInterrupt() | asyncio.CancelledError():  # some event loops turn Ctrl-C into the latter
            message, code = str(cause) or "interrupted", INTERRUPTED
        case NothingScored():
            message, code = str(cause), MANY_FAILED
        case RewardflowError():
            message, code = str(cause), WRONG_USE
        case OSError() if cause.filename is not None:
            message, code = f"{cause.filename}: {cause.strerror}", WRONG_USE
        case OSError(errno=errno.ENOSPC):  # without a file name it is stdout or stderr, redirected to a file
            _drop_stdout()
            message, code = f"the output could not be written: {cause.strerror}", WRONG_USE
        case _:
            sys.excepthook = _print_without_secrets  # the interpreter shows the traceback of a bug of ours with it
            raise error
    with contextlib.suppress(OSError):  # stderr is closed or full as well
        if shows_traceback:
            sys.stderr.write(safe("".join(traceback.format_exception(error))))
        sys.stderr.write(f"rewardflow: {safe(message)}\n")
    return code


def _print_without_secrets(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.stderr.write(safe("".join(traceback.format_exception(kind, error, trace))))


def _cause_of(error: BaseException) -> BaseException:
    """Returns the error inside task groups' exception groups, if one error or only errors of ours explain the group."""
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


def _drop_stdout() -> None:
    """Sends stdout to the null device: the interpreter flushes it once more at exit and would complain."""
    with contextlib.suppress(OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    # A shell's background job ignores SIGINT, and then asyncio installs no handler that cancels its main task: SIGTERM
    # would raise in the middle of the loop. Blocking SIGINT ignores Ctrl-C too and lets asyncio install its handler.
    ignores_ctrl_c = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignores_ctrl_c:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if ignores_ctrl_c:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _interrupt(_: int, frame: FrameType | None) -> None:
    """Does what Ctrl-C would do now; a running event loop has set a handler."""
    handler = signal.getsignal(signal.SIGINT)
    (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)
