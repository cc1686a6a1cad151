"""What commands write with: the consoles of stdout and stderr, the log, numbers as text and small bar charts.

Always true: progress and logs go to stderr, results to stdout; where stderr is no terminal it gets whole lines and no
control codes; a log line holds no secret and cannot control the terminal. rich is loaded when something is drawn.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rewardflow.cli.safe_text import safe

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PLAIN_WIDTH = 120  # of lines in a file or in CI, which have no width
PLAIN_EVERY_S = 3.0
TICK_S = 0.125
COLUMN_GAP = 2

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII_BLOCKS = ".:-=+*#@"


# ---- consoles and log ---------------------------------------------------------------------------------------------


@functools.cache
def stderr_console() -> Console:
    """Returns the one console of stderr: log lines and a live view on the same terminal must share it."""
    return _console(is_stderr=True)


@functools.cache
def stdout_console() -> Console:
    return _console(is_stderr=False)


@contextlib.contextmanager
def prints_to_stderr(*, applies: bool) -> Iterator[None]:
    """Sends to stderr what a reward prints here and in its processes, so that stdout can hold one JSON object alone."""
    if not applies:
        yield
        return
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, ValueError):  # streams that are no files: nothing else prints to them
            own, other = sys.stdout.fileno(), sys.stderr.fileno()
            sys.stdout.flush()
            kept = os.dup(own)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, own)
            stack.callback(sys.stdout.flush)  # of code that kept the stream
            os.dup2(other, own)
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield


def _console(*, is_stderr: bool) -> Console:
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            """Raises: rich would exit with its own code, but `command_run` decides what a closed pipe means."""
            self.quiet = True
            raise BrokenPipeError

    stream = sys.stderr if is_stderr else sys.stdout
    has_no_width = not stream.isatty() and "COLUMNS" not in os.environ
    return PipeConsole(
        stderr=is_stderr, width=PLAIN_WIDTH if has_no_width else None, markup=False, highlight=False, emoji=False
    )


class _SafeFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return safe(super().format(record))


class _StderrHandler(logging.Handler):
    """Hands records to rich's handler, which it makes for the first record.

    Drops what other libraries log below a warning, because some set the level of their own loggers to DEBUG, and what a
    library writes to the terminal itself.
    """

    def emit(self, record: logging.LogRecord) -> None:
        is_ours = record.name.partition(".")[0] == "rewardflow"
        if is_ours or (record.levelno >= logging.WARNING and not _writes_itself(record.name)):
            self._rich_handler.handle(record)

    @functools.cached_property
    def _rich_handler(self) -> logging.Handler:
        from rich.logging import RichHandler

        handler = RichHandler(console=stderr_console(), show_path=False, log_time_format="%H:%M:%S")
        handler.setFormatter(_SafeFormatter("%(message)s"))
        return handler


def _writes_itself(name: str) -> bool:
    """Whether the logger or one above it, except the root, writes to a terminal; huggingface_hub's does."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None and logger.parent is not None:
        if any(getattr(handler, "stream", None) in (sys.stderr, sys.stdout) for handler in logger.handlers):
            return True
        logger = logger.parent
    return False


@contextlib.contextmanager
def logging_to_stderr(verbosity: int) -> Iterator[None]:
    """Logs every library's warnings, and of rewardflow also INFO (verbosity 1) and DEBUG (2)."""
    handler = _StderrHandler()
    root, own = logging.getLogger(), logging.getLogger("rewardflow")
    before = own.level
    root.addHandler(handler)
    own.setLevel((logging.WARNING, logging.INFO, logging.DEBUG)[min(verbosity, 2)])
    try:
        yield
    finally:
        own.setLevel(before)
        root.removeHandler(handler)


def three_columns(rows: Iterable[tuple[str, str, str]]) -> Table:
    """Lays out rows of a bold label, a figure aligned to the right and text that may wrap."""
    from rich.table import Table

    grid = Table.grid(padding=(0, COLUMN_GAP))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return grid


# ---- numbers and small pictures -----------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    minutes, rest_s = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest_s} s"
    return f"{minutes // 60} h {minutes % 60} min"


def dollars(usd: float) -> str:
    """Shows cents, and fractions of a cent below a dollar: a call to a small judge costs less than a cent."""
    return f"${usd:,.2f}" if usd >= 1 or usd == 0 else f"${usd:.4f}"


def sparkline(values: Sequence[float], *, ascii_only: bool = False) -> str:
    """Draws one character for each value, as high as the value is relative to the largest."""
    blocks = _ASCII_BLOCKS if ascii_only else _BLOCKS
    top = max(values, default=0.0)
    if top <= 0:
        return blocks[0] * len(values)
    return "".join(blocks[round(max(value, 0.0) / top * (len(blocks) - 1))] for value in values)


def bar(share: float, width: int, *, ascii_only: bool = False) -> str:
    """Draws a bar that is never empty for a share above zero: one failure in a million must be seen."""
    filled = round(share * width)
    return ("#" if ascii_only else "█") * (max(filled, 1) if share > 0 else 0)
