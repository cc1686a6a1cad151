"""Yields random tokens at a fixed pace, as if a GPU generated them: this machine's CPUs do the rest of the work.

For measuring only. A run that does not name a pace generates with its model.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator

VARIABLE = "VERL_CPU_SECONDS_A_TOKEN"


def pace_s() -> float:
    """Returns the seconds for a token; 0 without a pace."""
    return float(os.environ.get(VARIABLE, 0.0))


def random_tokens(vocabulary: int) -> Iterator[int]:
    while True:
        time.sleep(pace_s())
        yield random.randrange(vocabulary)
