"""Bounds on the numbers that a service sends about itself: waits, limits, token counts and costs.

Always true: a number that passes is finite and within its bounds. Any other value is ignored, and logged once for each
name, so that one absurd number can neither stop a run nor be overlooked.
"""

from __future__ import annotations

import logging
import math
from typing import Any, Final

logger = logging.getLogger(__name__)

_MAX_SHOWN_CHARS = 60


class Bounds:
    """The lowest and the highest number that a service can mean."""

    def __init__(self, low: float, high: float, unit: str, *, is_whole: bool = False) -> None:
        self.low = low
        self.high = high
        self._unit = unit
        self._is_whole = is_whole
        self._told: set[str] = set()

    def read(self, value: Any, name: str, *, at_most: float = math.inf) -> float | None:
        """Returns the number, or None if it is no number within the bounds. `name` is where the service sent it.

        `at_most` is a tighter bound for this one number.
        """
        high = min(self.high, at_most)
        is_number = isinstance(value, int if self._is_whole else int | float) and not isinstance(value, bool)
        if is_number and self.low <= value <= high:  # false for NaN
            return float(value)
        self._tell(value, name, high)
        return None

    def count(self, value: Any, name: str, *, at_most: float = math.inf) -> int | None:
        """Returns a whole number, exactly; otherwise works as `read`."""
        return None if self.read(value, name, at_most=at_most) is None else int(value)

    def _tell(self, value: Any, name: str, high: float) -> None:
        if name in self._told:
            return
        self._told.add(name)
        kind = "whole number" if self._is_whole else "number"
        shown = repr(value) if isinstance(value, int | float) and abs(value) < math.inf else ascii(value)
        logger.warning(
            "a service sent %s = %s, which is ignored: it must be a %s from %.10g to %.10g %s (said once)",
            name,
            shown[:_MAX_SHOWN_CHARS],
            kind,
            self.low,
            high,
            self._unit,
        )


WAIT_S: Final = Bounds(0.0, 86_400.0, "s")  # the longest quotas are those of a day
# Below these limits a call would wait for hours; above, nothing limits.
RPM: Final = Bounds(1.0, 1e9, "requests a minute")
TPM: Final = Bounds(100.0, 1e12, "tokens a minute")
# The largest contexts hold 10 million tokens.
CALL_TOKENS: Final = Bounds(0, 20_000_000, "tokens in a call", is_whole=True)
CALL_COST_USD: Final = Bounds(0.0, 1_000.0, "USD a call")
