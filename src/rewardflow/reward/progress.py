"""Shows how far an agent has come: a line that changes on a terminal and in notebooks; elsewhere lines, on request.

Always true: figures come from `statistics()`; a file, a pipe and CI get nothing unless the caller asks; work that takes
less than a second shows nothing; a line that changes is removed at the end. Showing never changes how the work ends:
its errors are the same with and without progress, and a screen that breaks is logged and left alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import importlib
import logging
import sys
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from rewardflow.reward.agent import RewardAgent
    from rewardflow.reward.agent_statistics import AgentStatistics

logger = logging.getLogger(__name__)

TICK_S = 0.5
LOG_TICK_S = 10.0  # whole lines stay, so there must be few
SHOWN_AFTER_S = 1.0
MAX_COLUMNS = 79


class Screen(Protocol):
    """Shows one line every `tick_s` seconds, in place of the line before if it can; `clear` removes it."""

    @property
    def tick_s(self) -> float: ...

    def show(self, line: str) -> None: ...

    def clear(self) -> None: ...


class TerminalLine:
    """Overwrites the last line of a terminal."""

    tick_s = TICK_S

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, line: str) -> None:
        self._write(f"\r\x1b[K{line[:MAX_COLUMNS]}")

    def clear(self) -> None:
        self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        _write(self._stream, text)


class WholeLines:
    """Writes every line below the one before: for files, pipes and CI."""

    tick_s = LOG_TICK_S

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, line: str) -> None:
        _write(self._stream, f"{line}\n")

    def clear(self) -> None:
        """Leaves the lines: a log keeps what it has."""


def _write(stream: TextIO, text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # the terminal or the pipe went away; scoring goes on
        stream.write(text)
        stream.flush()


class NotebookLine:
    """Updates one output of a notebook's cell."""

    tick_s = TICK_S

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None

    def show(self, line: str) -> None:
        content = {"text/plain": line, "text/html": f"<pre>{html.escape(line)}</pre>"}
        if self._handle is None:
            self._handle = self._display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def clear(self) -> None:
        if self._handle is not None:
            self._handle.update({"text/plain": ""}, raw=True)


def screen_here(*, is_wanted: bool | None = None) -> Screen | None:
    """Returns the screen to show progress on, or None.

    is_wanted: False shows nothing; True shows progress wherever stderr goes; None only where somebody looks.
    """
    if is_wanted is False:
        return None
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None and getattr(shell, "kernel", None) is not None:
        return NotebookLine(importlib.import_module("IPython.display").display)  # the kernel has it
    if sys.stderr is None:
        return None
    if sys.stderr.isatty():
        return TerminalLine(sys.stderr)
    return WholeLines(sys.stderr) if is_wanted else None


@contextlib.asynccontextmanager
async def shown_progress(agent: RewardAgent, *, total: int | None = None, screen: Screen | None) -> AsyncIterator[None]:
    """Shows the agent's progress while the block runs; `total` is the number of rollouts, if it is known."""
    if screen is None:
        yield
        return
    shown = _ShownProgress(agent, total, screen)
    try:
        yield
    finally:
        shown.end()


class _ShownProgress:
    """Shows a line from a timer of the loop: a task group round the block would wrap the block's errors."""

    def __init__(self, agent: RewardAgent, total: int | None, screen: Screen) -> None:
        self._agent = agent
        self._total = total
        self._screen = screen
        self._loop = asyncio.get_running_loop()
        self._started_s = self._loop.time()
        self._is_shown = False
        self._timer = self._loop.call_later(SHOWN_AFTER_S, self._tick)

    def end(self) -> None:
        self._timer.cancel()
        if self._is_shown:
            self._try(self._screen.clear)

    def _tick(self) -> None:
        elapsed_s = self._loop.time() - self._started_s
        line = progress_line(self._agent.statistics(), total=self._total, elapsed_s=elapsed_s)
        self._is_shown = self._try(lambda: self._screen.show(line))
        if self._is_shown:
            self._timer = self._loop.call_later(self._screen.tick_s, self._tick)

    def _try(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except Exception as error:  # whatever a notebook's front end raises: scoring goes on without a line
            logger.warning("progress is not shown any more: %s: %s", type(error).__name__, error)
            return False
        return True


def progress_line(statistics: AgentStatistics, *, total: int | None, elapsed_s: float) -> str:
    """Says what matters most first: a narrow terminal cuts the end."""
    verdicts = statistics.verdicts
    num_failed = sum(verdicts.failed.values())
    done = verdicts.scored + num_failed
    whole = max(total or 0, verdicts.submitted)
    parts = [f"{done:,} of {whole:,} judged"]
    if num_failed:
        parts.append(f"{num_failed:,} failed")
    if done and whole > done:
        parts.append(f"{_short(elapsed_s / done * (whole - done))} left")
    if statistics.ledger.spent_usd:
        parts.append(f"${statistics.ledger.spent_usd:,.4f}")
    parts.append(f"{statistics.in_flight:,} in flight")
    return ", ".join(parts)


def _short(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
