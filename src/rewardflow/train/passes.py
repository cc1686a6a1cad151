"""The passes that ranks make together, each over rows of its own.

Always true: every rank makes the same number of passes, those with nothing left an idle one; what is found is put
back in the order of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rewardflow.train.fsdp2.sharding import Ranks
from rewardflow.train.packing import TokenRow, split_passes


def even_passes(rows: Sequence[TokenRow], token_budget: int, ranks: Ranks) -> list[list[int]]:
    """The rows of each pass, by index; none of them where other ranks have more passes to make."""
    passes = split_passes([row.num_tokens for row in rows], token_budget)
    return passes + [[] for _ in range(ranks.most(len(passes)) - len(passes))]


def by_row(found: Sequence[Tensor], passes: Sequence[Sequence[int]], rows: Sequence[TokenRow]) -> list[Tensor]:
    """What each pass found for its sampled tokens, as one tensor on the CPU for each row; an idle one's is nobody's."""
    columns = [torch.empty(0)] * len(rows)
    for found_N, indices in zip(found, passes, strict=True):
        sizes = [len(rows[index].sampled) for index in indices]
        if indices:
            for index, column in zip(indices, torch.split(found_N.cpu(), sizes), strict=True):
                columns[index] = column
    return columns
