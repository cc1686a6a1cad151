"""Reads a trainer's batches some places ahead, so that the next generation can begin before its turn.

Always true: the trainer gets every batch once, in the order in which its data gives them; no batch is read that the run
will not train on; an epoch that is begun early is not begun again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

_END = object()


class LookAhead:
    """Stands between a trainer and its epochs' iterators.

    `begin_next_epoch` returns the iterator of the epoch after this one; None if it cannot be begun early.
    """

    def __init__(self, begin_next_epoch: Callable[[], Iterator[Any] | None]) -> None:
        self._begin_next_epoch = begin_next_epoch
        self._given: Iterator[Any] | None = None  # what the trainer passes; tells one epoch from the next
        self._source: Iterator[Any] = iter(())
        self._ahead: deque[Any] = deque()
        self._next_source: Iterator[Any] | None = None
        self._next_ahead: deque[Any] = deque()
        self._window: list[Any] = []

    def take(self, epoch: Iterator[Any], count: int, *, ahead: int) -> list[Any]:
        """Returns the epoch's next `count` batches, and reads `ahead` more, from the next epoch if this one ends."""
        if epoch is not self._given:
            self._given = epoch
            self._source = epoch if self._next_source is None else self._next_source
            self._ahead, self._next_ahead, self._next_source = self._next_ahead, deque(), None
        _fill(self._ahead, self._source, count + ahead)
        self._window = [self._ahead.popleft() for _ in range(min(count, len(self._ahead)))]
        missing = ahead - len(self._ahead)
        if missing > 0:
            if self._next_source is None:
                self._next_source = self._begin_next_epoch()
            if self._next_source is not None:
                _fill(self._next_ahead, self._next_source, missing)
        return list(self._window)

    def at(self, place: int) -> Any | None:
        """Returns the batch at a place, counted from the start of the last window; None if it was not read."""
        known = [*self._window, *self._ahead, *self._next_ahead]
        return known[place] if place < len(known) else None


def _fill(batches: deque[Any], source: Iterator[Any], count: int) -> None:
    while len(batches) < count and (batch := next(source, _END)) is not _END:
        batches.append(batch)
