"""Selects the groups that a step trains on, and their order.

Always true: a step makes P selections, one for each requested group, and training takes each exactly once: that group,
the reserve that replaces it, or no group, because it dropped out and no reserve was left. With a fixed order the
selections depend only on which groups are kept, not on when that became known.

This module knows no clock and never waits: the loop settles groups as their verdicts come, and takes selections as
they become ready.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rewardflow.flow.schedule import Order

_Fate = Literal["pending", "kept", "dropped"]


@dataclass(frozen=True, slots=True)
class Selection:
    """One of a step's P selections. `number` is the selected group, or None if no group was left.

    `requested` is the requested group in whose place it was selected: the same group, or one that dropped out.
    """

    requested: int
    number: int | None


class GroupSelection:
    """The selections of one step. `numbers` are its requested groups; `add_reserves` adds groups that may replace them.

    A reserve is started, that is, sent to the reward agent, only when a group drops out.
    """

    def __init__(self, numbers: range, order: Order) -> None:
        self._order = order
        self._requested: dict[int, _Fate] = dict.fromkeys(numbers, "pending")
        self._reserves: dict[int, _Fate] = {}  # the started ones
        self._unstarted: deque[int] = deque()
        self._replaces: dict[int, int] = {}  # the requested group that each started reserve replaces
        self._unreplaced: deque[int] = deque()  # requested groups that dropped out and found no reserve yet
        self._may_refill = True
        self._ready: deque[Selection] = deque()
        self._in_order = self._select_in_order()
        self._num_taken = 0

    @property
    def num_untaken(self) -> int:
        return len(self._requested) - self._num_taken

    @property
    def num_ready(self) -> int:
        """The number of selections that can be taken now."""
        return len(self._ready)

    @property
    def num_unreplaced(self) -> int:
        """The number of dropped groups that found no reserve; more reserves may still come."""
        return len(self._unreplaced)

    def add_reserves(self, numbers: range) -> list[int]:
        """Adds groups that may replace dropped ones. Returns those to start at once."""
        self._unstarted.extend(numbers)
        started = []
        while self._unreplaced and self._unstarted:
            started.append(self._start_reserve(self._unreplaced.popleft()))
        return started

    def settle(self, number: int, *, is_kept: bool) -> int | None:
        """Records whether a group is kept. Returns the reserve to start in its place, if it has one."""
        fates = self._requested if number in self._requested else self._reserves
        fates[number] = "kept" if is_kept else "dropped"
        requested = self._replaces.get(number, number)
        started = None
        if is_kept:
            self._select_if_by_completion(Selection(requested, number))
        elif self._unstarted:
            started = self._start_reserve(requested)
        elif self._may_refill:
            self._unreplaced.append(requested)
        else:
            self._select_if_by_completion(Selection(requested, None))
        self._advance()
        return started

    def end_refill(self) -> None:
        """Says that no more reserves will come: dropped groups without a replacement stay without one."""
        self._may_refill = False
        while self._unreplaced:
            self._select_if_by_completion(Selection(self._unreplaced.popleft(), None))
        self._advance()

    def take(self) -> Selection:
        """Removes and returns the next selection. Call it only while `num_ready` is positive."""
        self._num_taken += 1
        return self._ready.popleft()

    def unused_reserves(self) -> list[int]:
        """Returns the reserves that were never started."""
        return list(self._unstarted)

    def _start_reserve(self, requested: int) -> int:
        number = self._unstarted.popleft()
        self._reserves[number] = "pending"
        self._replaces[number] = requested
        return number

    def _select_if_by_completion(self, selection: Selection) -> None:
        if self._order == "completion":
            self._ready.append(selection)

    def _advance(self) -> None:
        if self._order == "fixed":
            for selection in self._in_order:
                if selection is None:
                    break
                self._ready.append(selection)

    def _select_in_order(self) -> Iterator[Selection | None]:
        """Yields the selections in the order of the requested groups, and None while the next one is unknown.

        The next kept reserve replaces a dropped group.
        """
        replacements = self._replacements()
        for number in self._requested:
            while self._requested[number] == "pending":
                yield None
            if self._requested[number] == "kept":
                yield Selection(number, number)
                continue
            while (replacement := next(replacements)) == "pending":
                yield None
            yield Selection(number, replacement)

    def _replacements(self) -> Iterator[int | Literal["pending"] | None]:
        """Yields the kept reserves in order, `pending` while the next one is unknown, and None when none is left."""
        position = 0
        while True:
            if position < len(self._reserves):
                number = list(self._reserves)[position]
                if self._reserves[number] == "pending":
                    yield "pending"
                    continue
                position += 1
                if self._reserves[number] == "kept":
                    yield number
            elif self._unstarted or self._may_refill:
                yield "pending"
            else:
                yield None
