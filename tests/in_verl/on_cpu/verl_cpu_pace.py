"""Tokens that come at a pace, by lot, as if a GPU generated them: this machine has its CPUs for the rest.

For measuring only. A run that does not name a pace generates.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator

VARIABLE = "VERL_CPU_SECONDS_A_TOKEN"


def pace_s() -> float:
    """0 where there is none."""
    return float(os.environ.get(VARIABLE, 0.0))


def by_lot(vocabulary: int) -> Iterator[int]:
    while True:
        time.sleep(pace_s())
        yield random.randrange(vocabulary)
