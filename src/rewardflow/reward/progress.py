"""Shows how far an agent has come, in one line that changes: on a terminal and in notebooks, and nowhere else.

Always true: figures come from `statistics()`; a file, a pipe and CI get nothing; work that takes less than a second
shows nothing; the line is removed at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import importlib
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from rewardflow.reward.agent import RewardAgent
    from rewardflow.reward.agent_statistics import AgentStatistics

TICK_S = 0.5
SHOWN_AFTER_S = 1.0
MAX_COLUMNS = 79


class Screen(Protocol):
    """Shows one line in place of the line before; `clear` removes it."""

    def show(self, line: str) -> None: ...

    def clear(self) -> None: ...


class TerminalLine:
    """Overwrites the last line of a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, line: str) -> None:
        self._write(f"\r\x1b[K{line[:MAX_COLUMNS]}")

    def clear(self) -> None:
        self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal went away; scoring goes on
            self._stream.write(text)
            self._stream.flush()


class NotebookLine:
    """Updates one output of a notebook's cell."""

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


def screen_here() -> Screen | None:
    """Returns the notebook's or the terminal's screen; None where nobody looks."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None and getattr(shell, "kernel", None) is not None:
        return NotebookLine(importlib.import_module("IPython.display").display)  # the kernel has it
    return TerminalLine(sys.stderr) if sys.stderr is not None and sys.stderr.isatty() else None


@contextlib.asynccontextmanager
async def shown_progress(agent: RewardAgent, *, total: int | None = None, screen: Screen | None) -> AsyncIterator[None]:
    """Shows the agent's progress while the block runs; `total` is the number of rollouts, if it is known."""
    if screen is None:
        yield
        return
    async with asyncio.TaskGroup() as tasks:
        showing = tasks.create_task(_show(agent, total, screen))
        try:
            yield
        finally:
            showing.cancel()


async def _show(agent: RewardAgent, total: int | None, screen: Screen) -> None:
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    await asyncio.sleep(SHOWN_AFTER_S)
    try:
        while True:
            screen.show(progress_line(agent.statistics(), total=total, elapsed_s=loop.time() - started_s))
            await asyncio.sleep(TICK_S)
    finally:
        screen.clear()


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
