"""Computes how fast a list of calls with known delays can be done with a number of slots.

Always true: the times are those of an ideal machine, which starts the next call the moment a slot is free.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def list_schedule(delays_s: Sequence[float], slots: int) -> list[float]:
    """Returns when each call ends if calls start in this order, each in the first free slot."""
    free = [0.0] * min(slots, len(delays_s))
    ends = []
    for delay_s in delays_s:
        end_s = heapq.heappop(free) + delay_s
        heapq.heappush(free, end_s)
        ends.append(end_s)
    return ends


def time_of_groups(ends_s: Sequence[float], group_size: int, count: int) -> float:
    """Returns the time by which `count` groups are complete."""
    groups = [max(ends_s[i : i + group_size]) for i in range(0, len(ends_s), group_size)]
    return sorted(groups)[count - 1]
