"""Counts the calls that a service accepted between the first and the last call it refused.

Always true: `num_accepted` counts the calls sent strictly between those two and not refused, so that
`num_accepted / elapsed_s` is the service's rate while we sent faster than it allows. Only calls sent long enough ago
count: refusals may arrive in any order, so for younger calls it is not yet known which were refused.
"""

from __future__ import annotations

import heapq
import math

# Refusals further apart than this many calls are chance, not a limit: the count starts again.
_LONGEST_GAP = 200


class Refusals:
    """The calls sent at one chosen rate, by number, and which of them were refused."""

    __slots__ = (
        "_first_at",
        "_first_index",
        "_last_at",
        "_last_index",
        "_young",
        "is_trial",
        "lowest_rate",
        "num_before",
        "num_heard",
        "num_refused",
        "num_sent",
        "stopped_s",
    )

    def __init__(self, *, is_trial: bool = False, num_before: int = 0) -> None:
        self.num_before = num_before  # calls of earlier measurements
        self.is_trial = is_trial  # sent far too fast on purpose: refusals are no reason for a lower rate
        self.num_sent = 0
        self.num_heard = 0  # all refusals that arrived
        self.num_refused = 0  # the refusals that are in the count
        self.lowest_rate = math.inf  # the lowest rate at which a call was refused
        self.stopped_s = 0.0  # time that Retry-After stopped sending, since the first refusal
        self._young: list[tuple[int, float]] = []  # a heap of refusals that are too young to count
        self._first_at = self._last_at = 0.0
        self._first_index = self._last_index = 0

    @property
    def elapsed_s(self) -> float:
        return self._last_at - self._first_at

    @property
    def num_accepted(self) -> int:
        return max(0, self._last_index - self._first_index - (self.num_refused - 1))

    @property
    def share(self) -> float:
        """The share of refused calls among the counted ones."""
        return self.num_refused / max(1, self.num_refused + self.num_accepted)

    def add(self, sent_at: float, index: int, sent_rate: float) -> None:
        """Records that call number `index` was refused."""
        self.num_heard += 1
        self.lowest_rate = min(self.lowest_rate, sent_rate)
        heapq.heappush(self._young, (index, sent_at))

    def settle(self, sent_before: float) -> None:
        """Counts the calls sent until then; all of their refusals have arrived."""
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
