"""Which groups a step trains on, and in which order.

Always true: a step has P shares and each is taken exactly once: filled by a group that is kept, or empty because what
could have filled it dropped out and nothing was in reserve. With a fixed order the shares are a function of which
groups are kept, whatever the order in which that became known.

No clock and no waiting here: the loop settles groups as their verdicts come, and takes shares as they are ready.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rewardflow.flow.schedule import Order

_Fate = Literal["out", "kept", "dropped"]


@dataclass(frozen=True, slots=True)
class Share:
    """One of a step's P places: the number of the group that fills it, or None."""

    number: int | None


class GroupSelection:
    """The shares of one step. `numbers` are the groups that were asked for; reserves come in with `add_reserves`."""

    def __init__(self, numbers: range, order: Order) -> None:
        self._order = order
        self._slots: dict[int, _Fate] = dict.fromkeys(numbers, "out")
        self._reserves: dict[int, _Fate] = {}
        self._unstarted: deque[int] = deque()
        self._num_unfilled = 0  # dropped, and no reserve was there; more reserves may still come
        self._may_refill = True
        self._ready: deque[Share] = deque()
        self._in_order = self._shares_in_order()
        self._num_taken = 0

    @property
    def num_untaken(self) -> int:
        return len(self._slots) - self._num_taken

    @property
    def num_ready(self) -> int:
        """GroupSelection that can be taken now."""
        return len(self._ready)

    @property
    def num_unfilled(self) -> int:
        """GroupSelection that wait for more reserves than there are."""
        return self._num_unfilled

    def add_reserves(self, numbers: range) -> list[int]:
        """More groups that may fill a share; gives those that are needed at once."""
        self._unstarted.extend(numbers)
        started = []
        while self._num_unfilled and self._unstarted:
            self._num_unfilled -= 1
            started.append(self._start_reserve())
        return started

    def settle(self, number: int, *, is_kept: bool) -> int | None:
        """Say what became of a group. Gives the reserve whose verdicts are needed instead, if there is one."""
        fates = self._slots if number in self._slots else self._reserves
        fates[number] = "kept" if is_kept else "dropped"
        started = None
        if is_kept:
            self._ready_if_by_completion(Share(number))
        elif self._unstarted:
            started = self._start_reserve()
        elif self._may_refill:
            self._num_unfilled += 1
        else:
            self._ready_if_by_completion(Share(None))
        self._advance()
        return started

    def end_refill(self) -> None:
        """No more reserves will come: shares that nothing can fill stay empty."""
        self._may_refill = False
        for _ in range(self._num_unfilled):
            self._ready_if_by_completion(Share(None))
        self._num_unfilled = 0
        self._advance()

    def take(self) -> Share:
        """The next share; only while `num_ready`."""
        self._num_taken += 1
        return self._ready.popleft()

    def unused(self) -> list[int]:
        """Reserves whose verdicts were never asked for."""
        return list(self._unstarted)

    def _start_reserve(self) -> int:
        number = self._unstarted.popleft()
        self._reserves[number] = "out"
        return number

    def _ready_if_by_completion(self, share: Share) -> None:
        if self._order == "completion":
            self._ready.append(share)

    def _advance(self) -> None:
        if self._order == "fixed":
            for share in self._in_order:
                if share is None:
                    break
                self._ready.append(share)

    def _shares_in_order(self) -> Iterator[Share | None]:
        """The shares slot by slot, None while the next is not known yet: a gap gets the next reserve that is kept."""
        fillers = self._fillers()
        for number in self._slots:
            while self._slots[number] == "out":
                yield None
            if self._slots[number] == "kept":
                yield Share(number)
                continue
            while (filler := next(fillers)) is None:
                yield None
            yield filler

    def _fillers(self) -> Iterator[Share | None]:
        """Kept reserves in their order, None while the next is not known, and empty shares after the last."""
        position = 0
        while True:
            if position < len(self._reserves):
                number = list(self._reserves)[position]
                if self._reserves[number] == "out":
                    yield None
                    continue
                position += 1
                if self._reserves[number] == "kept":
                    yield Share(number)
            elif self._unstarted or self._may_refill:
                yield None
            else:
                yield Share(None)
