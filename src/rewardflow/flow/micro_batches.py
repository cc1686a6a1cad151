"""Cuts mini-batches into micro-batches.

Always true: the cut depends only on the lengths of the generated rollouts, not on anything that happens afterwards. So
it is the same for every `stream` setting and on every rank, and is known while verdicts are still out.
"""

from __future__ import annotations


def plan_micro_batches(num_groups: int, num_tokens: int, max_tokens: int) -> list[int]:
    """Returns the groups in each micro-batch: as few micro-batches as hold the tokens, as even as possible."""
    num_batches = min(num_groups, max(1, -(-num_tokens // max_tokens)))
    return [num_groups * (i + 1) // num_batches - num_groups * i // num_batches for i in range(num_batches)]


def split_by_tokens(lengths: list[int], max_tokens: int) -> list[slice]:
    """Splits into runs of neighbours that fit; a sequence that is too long gets a slice for itself."""
    slices, start, total = [], 0, 0
    for i, length in enumerate(lengths):
        if i > start and total + length > max_tokens:
            slices.append(slice(start, i))
            start, total = i, 0
        total += length
    if start < len(lengths):
        slices.append(slice(start, len(lengths)))
    return slices
