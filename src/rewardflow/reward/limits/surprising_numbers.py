"""Doubts a number of a service that contradicts what the service has just done, until a second answer repeats it.

Always true: one odd answer among good ones neither stops nor cripples a run. It delays the account by at most a minute.
Two answers that agree are believed, so a limit or a quota that is real costs one more answer to learn.

`plausible_numbers` refuses what no service can mean; the numbers here are possible, but not after what was seen.
"""

from __future__ import annotations

import logging
import math
from typing import Final

logger = logging.getLogger(__name__)

_FAR: Final = 2.0  # a limit is a surprise if it is this many times lower, or higher, than what was seen
_MAX_ANSWERS_BETWEEN: Final = 20  # a repeat that comes later is another accident
_WINDOW_S: Final = 60.0
_LONG_WAIT_S: Final = 60.0  # limits per minute ask for no more
_FAR_USAGE: Final = 8.0
_USAGE_WEIGHT: Final = 0.02


class AnnouncedLimit:
    """The limit per minute of requests, or of tokens, that answers announce, beside what the service accepted."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._believed: float | None = None
        self._doubted: float | None = None
        self._num_since_doubted = 0
        self._window_at = -math.inf
        self._in_window = 0.0
        self._most_in_window = 0.0
        self._is_told = False

    def accepted(self, amount: float, now: float) -> None:
        """Counts what an answered call used."""
        if now - self._window_at >= _WINDOW_S:
            self._window_at, self._in_window = now, 0.0
        self._in_window += amount
        if self._in_window > self._most_in_window:
            self._most_in_window = self._in_window
        self._num_since_doubted += 1

    def believe(self, announced: float) -> float | None:
        """Returns the limit to keep, or None if it is a surprise that no other answer has repeated."""
        if self._is_surprise(announced) and not self._is_repeated(announced):
            self._doubted, self._num_since_doubted = announced, 0
            self._tell(announced)
            return None
        if self._is_surprise(announced):
            self._most_in_window = self._in_window = 0.0
        self._believed, self._doubted = announced, None
        return announced

    def _is_surprise(self, announced: float) -> bool:
        if announced == self._believed:
            return False
        seen = max(self._most_in_window, self._believed or 0.0)
        return announced * _FAR < seen or (self._believed is not None and announced > _FAR * self._believed)

    def _is_repeated(self, announced: float) -> bool:
        if self._doubted is None or self._num_since_doubted > _MAX_ANSWERS_BETWEEN:
            return False
        return self._doubted / _FAR <= announced <= self._doubted * _FAR

    def _tell(self, announced: float) -> None:
        if not self._is_told:
            logger.warning(
                "a service announced a limit of %g %s a minute, after it accepted %.0f in a minute; it is kept when a "
                "second answer announces it (said once)",
                announced,
                self._unit,
                self._most_in_window,
            )
        self._is_told = True


class AskedWaits:
    """The waits that refused calls ask for, beside the calls that the service answered."""

    def __init__(self) -> None:
        self.wants_accepted = True  # the next answered call can make a difference
        self._has_accepted = False
        self._doubted_at: float | None = None
        self._is_told = False

    def accepted(self, sent_at: float) -> None:
        """Notes that the service answered a call; one that was sent after the refusal shows that it was an accident."""
        self._has_accepted = True
        if self._doubted_at is not None and sent_at > self._doubted_at:
            self._doubted_at = None
        self.wants_accepted = self._doubted_at is not None

    def believe(self, wait_s: float, now: float) -> float:
        """Returns how long to wait: a minute, if a service that answers others asks in one answer for longer."""
        if wait_s <= _LONG_WAIT_S or not self._has_accepted or self._doubted_at is not None:
            return wait_s
        self._doubted_at = now
        self.wants_accepted = True
        if not self._is_told:
            logger.warning(
                "a service asked to wait %.0f s, after it answered other calls; calls go on in %.0f s unless a second "
                "answer asks for a long wait too (said once)",
                wait_s,
                _LONG_WAIT_S,
            )
        self._is_told = True
        return _LONG_WAIT_S


class UsualTokens:
    """The running mean of the tokens that calls used. One call counts for at most eight times the mean."""

    def __init__(self) -> None:
        self.mean = 0.0
        self._num_usages = 0

    def add(self, tokens: int) -> None:
        self._num_usages += 1
        counted = tokens if self.mean == 0.0 else min(tokens, _FAR_USAGE * self.mean)
        self.mean += max(_USAGE_WEIGHT, 1.0 / self._num_usages) * (counted - self.mean)

    def most(self, reserved: int, tpm: float) -> float:
        """Returns the most that the next call can have used of a limit, whatever its answer said.

        A service does not accept a call that uses more than its limit of a minute, unless calls here usually do.
        """
        return max(tpm, _FAR_USAGE * self.mean, _FAR_USAGE * reserved)
