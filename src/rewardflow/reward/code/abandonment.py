"""Tells blocking code in a thread that nobody waits for its result any more.

Always true: a stop function that is registered with `stopped_by` runs at most once, and only while its block runs.
Code that waits for another process registers how to kill it; so a timeout ends the process, and the thread goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")


class Abandonment:
    """Connects one call in a thread with its caller on the loop, who may give up."""

    __slots__ = ("_lock", "_name", "_stop", "is_abandoned")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stop: Callable[[], None] | None = None
        self._name = ""
        self.is_abandoned = False

    def abandon(self) -> str:
        """Stops what the thread waits for, without waiting itself; returns the name of it, or ""."""
        with self._lock:
            self.is_abandoned = True
            if self._stop is None:
                return ""
            self._stop()
            return self._name

    @contextlib.contextmanager
    def stopped_by(self, stop: Callable[[], None], name: str) -> Iterator[None]:
        """Calls `stop` if the caller gives up during this block, or has already given up. `stop` must not wait."""
        with self._lock:
            self._stop, self._name = stop, name
            if self.is_abandoned:
                stop()
        try:
            yield
        finally:
            with self._lock:
                self._stop = None


class _Current(threading.local):
    abandonment: Abandonment | None = None


_current = _Current()


def current_abandonment() -> Abandonment | None:
    """Returns that of the call in this thread; None where nobody can give a call up, as in a user's own script."""
    return _current.abandonment


@contextlib.contextmanager
def in_call(abandonment: Abandonment) -> Iterator[None]:
    """Makes `current_abandonment` return this one in this thread during the block."""
    _current.abandonment = abandonment
    try:
        yield
    finally:
        _current.abandonment = None


async def wait_for_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Runs the function in a thread of the loop's own pool. Cancelling the caller abandons the call."""
    abandonment = Abandonment()

    def run() -> T:
        with in_call(abandonment):
            return function(*arguments)

    try:
        return await asyncio.to_thread(run)
    except asyncio.CancelledError:
        if stopped := abandonment.abandon():
            raise asyncio.CancelledError(stopped) from None  # a deadline names it in its TimeoutError
        raise
