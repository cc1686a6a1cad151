"""Splits samples into shares with about as many tokens, the same for the same lengths.

Always true: every sample is in one share, once, and each share keeps the order; no two shares differ by more than the
longest sample.
"""

from __future__ import annotations

from collections.abc import Sequence


def split_evenly(loads: Sequence[int], num_shares: int) -> list[list[int]]:
    """Returns the indices in each share: the longest sample first, each to the share with the fewest tokens."""
    totals = [0] * num_shares
    shares: list[list[int]] = [[] for _ in range(num_shares)]
    for place in sorted(range(len(loads)), key=lambda place: (-loads[place], place)):
        least = min(range(num_shares), key=totals.__getitem__)
        shares[least].append(place)
        totals[least] += loads[place]
    return [sorted(share) for share in shares]
