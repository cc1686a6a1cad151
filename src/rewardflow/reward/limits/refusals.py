"""How much a service accepted between the first and the last call it refused.

Always true: `num_accepted` counts the calls sent strictly between the two that were not refused themselves, so that
`num_accepted / elapsed_s` is the service's rate while it was being asked for more. Only calls sent long enough ago
count, because of younger ones it is not known yet which were refused: refusals may come back in any order.
"""

from __future__ import annotations

import heapq
import math

# Refusals further apart than this many calls are chance, not a limit: the count begins anew.
_LONGEST_GAP = 200


class Refusals:
    """Calls sent under one choice of rate, by number, and which of them were refused."""

    __slots__ = (
        "_first_at",
        "_first_index",
        "_last_at",
        "_last_index",
        "_young",
        "lowest_rate",
        "num_heard",
        "num_refused",
        "num_sent",
        "stopped_s",
    )

    def __init__(self) -> None:
        self.num_sent = 0
        self.num_heard = 0  # refusals, counted yet or not
        self.num_refused = 0  # refusals in the count
        self.lowest_rate = math.inf  # at which a call was refused
        self.stopped_s = 0.0  # since the first refusal, by Retry-After
        self._young: list[tuple[int, float]] = []  # a heap: too young to be counted
        self._first_at = self._last_at = 0.0
        self._first_index = self._last_index = 0

    @property
    def elapsed_s(self) -> float:
        return self._last_at - self._first_at

    @property
    def num_accepted(self) -> int:
        return max(0, self._last_index - self._first_index - (self.num_refused - 1))

    def add(self, sent_at: float, index: int, sent_rate: float) -> None:
        """Call number `index` was refused."""
        self.num_heard += 1
        self.lowest_rate = min(self.lowest_rate, sent_rate)
        heapq.heappush(self._young, (index, sent_at))

    def settle(self, sent_before: float) -> None:
        """Count what was sent until then: by now all of its refusals are in."""
        while self._young and self._young[0][1] <= sent_before:
            index, sent_at = heapq.heappop(self._young)
            self._count(sent_at, index)

    def _count(self, sent_at: float, index: int) -> None:
        if self.num_refused == 0 or index - self._last_index > _LONGEST_GAP:
            self._first_at = self._last_at = sent_at
            self._first_index = self._last_index = index
            self.num_refused = 1
            self.stopped_s = 0.0
            return
        if self._first_index - index > _LONGEST_GAP:
            return
        self.num_refused += 1
        if index > self._last_index:
            self._last_at, self._last_index = sent_at, index
        elif index < self._first_index:
            self._first_at, self._first_index = sent_at, index
