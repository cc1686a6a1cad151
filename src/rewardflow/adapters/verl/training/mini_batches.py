"""Which groups are trained now, and in which order verl's workers get their rows.

Always true: groups leave in the order in which they were judged, in whole mini-batches, of which only a step's last may
be short; every rank gets its share of the first mini-batch before its share of the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Row = TypeVar("Row")


def num_ready(num_judged: int, *, taken: int, per_update: int, total: int) -> int:
    """How many of a step's `total` groups may have left, where `taken` have: all that make whole mini-batches."""
    return total if num_judged >= total else num_judged - (num_judged - taken) % per_update


def interleaved(mini_batches: Sequence[Sequence[Row]], *, ranks: int) -> list[Row]:
    """The rows of several mini-batches as one batch, which verl cuts by ranks first and by mini-batches then.

    Each is balanced over the ranks already, so its length is a multiple of their number.
    """
    return [
        row
        for rank in range(ranks)
        for rows in mini_batches
        for row in rows[rank * len(rows) // ranks : (rank + 1) * len(rows) // ranks]
    ]
