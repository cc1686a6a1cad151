"""Bounds the rate of a service whose refusals stop all sending for long.

Always true: the calls accepted from one stop to the next, divided by that whole time, are at most the service's rate.

A `Retry-After` of half a minute makes every refusal dear, and leaves too few of them to count between. But each stop
tells two bounds: the service's rate is at least the one above, and below the rate at which the call was refused unless
the service refuses by chance.
"""

from __future__ import annotations

import math

_LONG_S = 5.0
_CLOSE_BOUNDS = 1.1  # bounds of the rate that are this close need no more trials
_CLOSE_TRIAL = 1.25  # a trial that is this close to the refused rate is held for long
_STOP_SHARE = 0.08  # of the time that stops by Retry-After may take: the rate is held longer for it


class LongStops:
    """The time since the last long stop began, and the calls that were sent since."""

    def __init__(self) -> None:
        self.num_sent = 0
        self.refused_rate = math.inf  # at which the last refused call was sent
        self.ends_at = -math.inf
        self.longest_s = 0.0
        self._began_at: float | None = None

    def stopped(self, seconds: float, now: float) -> float | None:
        """Records a stop; returns the least rate that the service can have, None if this stop does not tell."""
        if seconds < _LONG_S:
            return None
        began_at, self._began_at = self._began_at, now
        num_sent, self.num_sent = self.num_sent, 0
        self.ends_at = now + seconds
        self.longest_s = seconds
        return None if began_at is None or num_sent < 2 else (num_sent - 1) / (now - began_at)

    def trial_rate(self, at_least: float) -> float:
        """Returns the rate to try next, between `at_least` and the refused rate."""
        is_close = self.refused_rate <= _CLOSE_BOUNDS * at_least
        return at_least if is_close else math.sqrt(at_least * self.refused_rate)

    def hold_s(self, trial: float) -> float:
        """Returns how long to hold a trial at least: long if it is close to the refused rate, as each stop is dear."""
        return self.longest_s / _STOP_SHARE if self.refused_rate <= _CLOSE_TRIAL * trial else 0.0
