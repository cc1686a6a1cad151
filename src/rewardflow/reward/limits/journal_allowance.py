"""Keeps the reservations of one account's calls in the journal, so that a cap holds after `kill -9`.

Always true: the money that the journal's verdicts do not show (reserved, uncertain, or spent and not saved yet) is at
most the allowance that is on disk, as long as no call costs more than it reserved. After a kill, the whole allowance
counts as uncertain.

The allowance is one row, not one row per call: it covers all calls in flight, and a verdict that is saved makes room
for the next call. It grows in blocks, by a quarter of what is in flight, so that a run writes it a few times while it
fills its slots, and then rarely. A clean end replaces it by the exact sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rewardflow.reward.journal.reservations import Reservation

_GROWTH = 0.25
_ROUNDING = 1e-9

Reserve = Callable[[Sequence[Reservation], Callable[[bool], None]], None]
"""Writes rows to the journal, then calls the function on the loop with whether they are on disk."""


class Allowance:
    """What one account may have in flight, according to the journal."""

    def __init__(self, before: Reservation, reserve: Reserve, on_change: Callable[[], None] | None) -> None:
        self._stored = before
        self._reserve = reserve
        self._on_change = on_change
        self.is_asked = False
        self.is_stored = False  # in this session

    def covers(
        self,
        exposure_usd: float,
        price_usd: float,
        *,
        in_flight_usd: float,
        room_usd: float,
        num_unpriced: int,
        largest_usd: float,
    ) -> bool:
        """Whether a call of this price may go out now. If not, asks the journal for a block, unless one is on its way.

        `exposure_usd` is the money that no saved verdict shows; `num_unpriced` counts the calls of unknown price.
        """
        stored = self._stored
        needed_usd = exposure_usd + price_usd
        allowed_usd = stored.spent_usd + stored.uncertain_usd
        if needed_usd <= allowed_usd * (1 + _ROUNDING) and num_unpriced <= stored.num_unpriced:
            return True
        if not self.is_asked:
            more_usd = max(price_usd, _GROWTH * (in_flight_usd + price_usd))
            wanted_usd = min(needed_usd + more_usd, max(needed_usd, exposure_usd + room_usd))
            block = Reservation(
                stored.account,
                spent_usd=stored.spent_usd,
                uncertain_usd=max(wanted_usd, allowed_usd) - stored.spent_usd,
                num_unpriced=num_unpriced + int(_GROWTH * num_unpriced),
                largest_usd=largest_usd,
            )
            self.is_asked = True
            self._reserve((block,), lambda is_saved: self._written(block, is_saved))
        return False

    def replaced(self, row: Reservation) -> None:
        """Notes that a clean end has written this row in place of the allowance."""
        self._stored = row

    def _written(self, block: Reservation, is_saved: bool) -> None:
        """Notes a block that is on disk. Another call asks again for one that is not, unless the journal gives up."""
        self.is_asked = False
        if is_saved:
            self._stored = block
            self.is_stored = True
        if self._on_change is not None:
            self._on_change()
