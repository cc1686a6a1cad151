"""Counts how many calls were in flight over time, in at most a few dozen bins for any number of calls and any duration.

Always true: the bins hold exactly the seconds that the calls lasted, each second in the bin of its time; a bin's width
is a power of two of a second, and bins begin at the clock's multiples of it, so that the bins of several steps line up.
"""

from __future__ import annotations

import math
from typing import Any

MAX_BINS = 64
LEAST_WIDTH_S = 2.0**-7


class CallLoad:
    """The bins. Not thread-safe: one writer. Adding a call takes the same time whether it lasted one bin or all."""

    __slots__ = ("_areas", "_changes", "_first", "_last", "_width_s")

    def __init__(self) -> None:
        self._width_s = LEAST_WIDTH_S
        # For each bin: how many more calls began than ended in it, and the seconds from those changes to its end.
        self._changes: dict[int, int] = {}
        self._areas: dict[int, float] = {}
        self._first = self._last = 0

    def add(self, started_s: float, ended_s: float) -> None:
        """Adds a call. Ignores intervals that end before they start, or that are not finite."""
        if started_s <= ended_s and math.isfinite(ended_s - started_s):
            self._change(started_s, 1)
            self._change(ended_s, -1)

    def _change(self, at_s: float, change: int) -> None:
        index = math.floor(at_s / self._width_s)
        if not self._changes:
            self._first = self._last = index
        self._first, self._last = min(self._first, index), max(self._last, index)
        while self._last - self._first >= MAX_BINS:
            self._widen()
            index >>= 1
        self._changes[index] = self._changes.get(index, 0) + change
        self._areas[index] = self._areas.get(index, 0.0) + change * ((index + 1) * self._width_s - at_s)

    def _widen(self) -> None:
        """Joins pairs of neighbouring bins. A change in the earlier bin also lasts to the end of the later one."""
        changes, areas = self._changes, self._areas
        self._changes, self._areas = {}, {}
        for index, change in changes.items():
            joined = index >> 1
            extra_s = 0.0 if index & 1 else change * self._width_s
            self._changes[joined] = self._changes.get(joined, 0) + change
            self._areas[joined] = self._areas.get(joined, 0.0) + areas[index] + extra_s
        self._width_s *= 2.0
        self._first >>= 1
        self._last >>= 1

    def to_json(self) -> dict[str, Any]:
        """Returns when the first bin begins, how wide bins are, and the mean number of calls in flight in each."""
        calls: list[float] = []
        in_flight = 0
        for index in range(self._first, self._last + 1) if self._changes else ():
            mean = in_flight + self._areas.get(index, 0.0) / self._width_s
            calls.append(round(max(0.0, mean), 3))
            in_flight += self._changes.get(index, 0)
        return {"started_s": self._first * self._width_s, "width_s": self._width_s, "calls": calls}
