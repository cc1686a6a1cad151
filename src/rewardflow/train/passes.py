"""The passes that ranks make together, each over its own rows.

Always true: every rank makes the same number of passes, and makes idle ones when it has no rows left; results come in
the order of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rewardflow.train.fsdp2.sharding import Ranks
from rewardflow.train.packing import TokenRow, split_passes


def even_passes(
    rows: Sequence[TokenRow], token_budget: int, ranks: Ranks, *, padding_free: bool = False
) -> list[list[int]]:
    """Returns the rows of each pass, by index; no rows for passes that only other ranks need."""
    passes = split_passes([row.num_tokens for row in rows], token_budget, padding_free=padding_free)
    return passes + [[] for _ in range(ranks.most(len(passes)) - len(passes))]


def by_row(found: Sequence[Tensor], passes: Sequence[Sequence[int]], rows: Sequence[TokenRow]) -> list[Tensor]:
    """Returns a tensor on the CPU for each row, from the results of the passes. Discards results of idle passes."""
    columns = [torch.empty(0)] * len(rows)
    for found_N, indices in zip(found, passes, strict=True):
        sizes = [len(rows[index].sampled) for index in indices]
        if indices:
            for index, column in zip(indices, torch.split(found_N.cpu(), sizes), strict=True):
                columns[index] = column
    return columns
