"""Ends a run on Ctrl-C or SIGTERM.

Always true: the first signal lets the step under way end, for at most `checkpoint.grace_s`; then the run saves itself
and leaves. A second signal, or the end of the grace, cancels the run, which closes everything in order. The process
exits without waiting if closing takes longer than a few seconds, because a library computes and cannot be interrupted,
or if a third signal comes; verdicts that were paid for are on disk by then. A run that has nothing to save is cancelled
by the first signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from rewardflow.cli.display import duration
from rewardflow.runtime.open_run import OpenRun

SIGNALS = (signal.SIGINT, signal.SIGTERM)
CLOSING_S = 3.0


class StopSignals:
    """Handles the signals inside `handled()`; inside `saving(run)` the first one lets the run save itself.

    `tell` shows a line; `leave` ends the process at once, from any thread.
    """

    def __init__(self, *, tell: Callable[[str], None], leave: Callable[[], None], closing_s: float = CLOSING_S) -> None:
        self.count = 0
        self._tell = tell
        self._leave = leave
        self._closing_s = closing_s
        self._run: OpenRun | None = None
        self._closing: threading.Timer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Takes the signals over from whoever had them; asyncio alone would cancel the run at once."""
        if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
            yield
            return
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        before = {one: signal.getsignal(one) for one in SIGNALS}
        for one in SIGNALS:
            signal.signal(one, self._on_signal)
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def closed(self) -> None:
        """Ends the watch over a closing that ended in time."""
        if self._closing is not None:
            self._closing.cancel()

    @contextlib.contextmanager
    def saving(self, run: OpenRun) -> Iterator[None]:
        """Tells that the run trains from here on, and so can be saved if it has a directory."""
        self._run = run if run.checkpointer is not None else None
        try:
            yield
        finally:
            self._run = None

    def _on_signal(self, _: int, __: FrameType | None) -> None:
        self.count += 1
        if self.count > 2:
            self._leave()
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(self._asked)

    def _asked(self) -> None:
        run = self._run
        if self.count > 1 or run is None or run.checkpointer is None or self._is_trained(run):
            self._cancel()
            return
        grace_s = run.settings.checkpoint.grace_s
        run.checkpointer.stop("signal")
        self._tell(
            f"stopping: the current step has {duration(grace_s)} (checkpoint.grace_s) to end, then the run is saved; "
            "a second Ctrl-C or SIGTERM leaves now"
        )
        asyncio.get_running_loop().call_later(grace_s, self._cancel)

    @staticmethod
    def _is_trained(run: OpenRun) -> bool:
        """Whether all steps are trained and saved, so that the run only waits for its last validation."""
        return run.flow.statistics().version >= run.settings.steps

    def _cancel(self) -> None:
        if self._closing is None and self._task is not None:
            self._closing = threading.Timer(self._closing_s, self._leave)
            self._closing.daemon = True
            self._closing.start()
            self._task.cancel()
