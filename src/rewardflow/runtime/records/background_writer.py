"""Writes on its own thread, so that nobody waits for it and the run continues if writing fails.

Always true: putting neither waits nor raises; every item is written in order, waits, or is counted as lost; a failure
is logged once; at most `most_waiting` items wait, because a target that accepts nothing must not fill the memory.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundStatistics:
    """Every item that was put is in exactly one of these counts."""

    num_written: int
    num_waiting: int
    num_lost: int


class BackgroundWriter(Generic[T]):
    """The thread enters and leaves `opened`, which gives the function that writes one item."""

    def __init__(
        self, name: str, opened: Callable[[], AbstractContextManager[Callable[[T], None]]], *, most_waiting: int
    ) -> None:
        self._name = name
        self._opened = opened
        self._most_waiting = most_waiting
        self._items: queue.SimpleQueue[tuple[T] | threading.Event | None] = queue.SimpleQueue()
        self._count = threading.Lock()
        self._num_put = self._num_written = self._num_lost = 0
        self._has_complained = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=f"rewardflow-{name}", daemon=True)
        self._thread.start()

    def put(self, item: T) -> None:
        with self._count:
            self._num_put += 1
            is_full = self._num_put - self._num_written - self._num_lost > self._most_waiting
        if self._is_closed or is_full:
            self._lose("it is closed" if self._is_closed else f"{self._most_waiting} already wait to be written")
        else:
            self._items.put((item,))

    def statistics(self) -> BackgroundStatistics:
        with self._count:
            waiting = self._num_put - self._num_written - self._num_lost
            return BackgroundStatistics(num_written=self._num_written, num_waiting=waiting, num_lost=self._num_lost)

    def flush(self, timeout_s: float) -> bool:
        """Waits until everything put so far is written or lost; returns False after the timeout."""
        if not self._thread.is_alive():
            return True
        reached = threading.Event()
        self._items.put(reached)
        return reached.wait(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Writes the waiting items, then ends; abandons what takes longer than the timeout, with a warning."""
        if self._is_closed:
            return
        self._is_closed = True
        self._items.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning("%s is not done after %g s and is left behind", self._name, timeout_s)

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with self._opened() as write:
                self._write_all(write)
        except Exception as error:  # whatever a foreign library raises: the run goes on without it
            self._complain(repr(error))
            self._write_all(None)

    def _write_all(self, write: Callable[[T], None] | None) -> None:
        """Writes items to the end; loses all of them if the target cannot be opened."""
        while (item := self._items.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
            elif write is None:
                self._lose("it could not be opened")
            else:
                self._write(write, item[0])

    def _write(self, write: Callable[[T], None], item: T) -> None:
        try:
            write(item)
        except Exception as error:  # as above; the next item may fare better
            self._lose(repr(error))
        else:
            with self._count:
                self._num_written += 1

    def _lose(self, reason: str) -> None:
        with self._count:
            self._num_lost += 1
        self._complain(reason)

    def _complain(self, reason: str) -> None:
        if not self._has_complained:
            self._has_complained = True
            logger.warning(
                "%s cannot be written, and the run goes on without another word of it: %s", self._name, reason
            )
