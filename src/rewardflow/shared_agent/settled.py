"""Which of a client's serial numbers are over, so that a message that comes late does its work no second time.

Always true: a number that was added is in it for ever; what is kept grows with how far numbers are settled out of
order, not with how many there were.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable


class Settled:
    """Every number up to a floor, and some above it."""

    __slots__ = ("_above", "_floor")

    def __init__(self) -> None:
        self._floor = 0
        self._above: set[int] = set()

    def __contains__(self, number: int) -> bool:
        return number <= self._floor or number in self._above

    def add(self, numbers: Iterable[int]) -> None:
        self._above.update(number for number in numbers if number > self._floor)
        while self._floor + 1 in self._above:
            self._floor += 1
            self._above.remove(self._floor)

    def add_all_but(self, numbers: Collection[int], *, last: int) -> None:
        """Every number up to the last one but these."""
        self._floor = max(self._floor, min([*numbers, last + 1]) - 1)
        self._above = {number for number in self._above if number > self._floor}
        self.add(set(range(self._floor + 1, last + 1)).difference(numbers))
