"""How a mini-batch is cut into micro-batches.

Always true: the cut depends on the lengths of what was generated and on nothing that happens afterwards, so that it is
the same for every `stream` setting and on every rank, and can be followed while verdicts are still out.
"""

from __future__ import annotations


def plan_micro_batches(num_shares: int, num_tokens: int, max_tokens: int) -> list[int]:
    """Shares in each micro-batch: as few micro-batches as hold the tokens, and as even as can be."""
    num_batches = min(num_shares, max(1, -(-num_tokens // max_tokens)))
    return [num_shares * (i + 1) // num_batches - num_shares * i // num_batches for i in range(num_batches)]


def split_by_tokens(lengths: list[int], max_tokens: int) -> list[slice]:
    """Neighbours, as many as fit; one that is too long by itself stands alone."""
    slices, start, total = [], 0, 0
    for i, length in enumerate(lengths):
        if i > start and total + length > max_tokens:
            slices.append(slice(start, i))
            start, total = i, 0
        total += length
    if start < len(lengths):
        slices.append(slice(start, len(lengths)))
    return slices
