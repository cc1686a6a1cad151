"""Causal attention for Megatron's own layers, by torch's kernels, also over sequences that several ranks share.

Always true: the whole table of scores is never held, unless the context is cut; a query sees the keys up to its own
position. Cut sequences: each rank has its queries and gathers the keys and values of all ranks, whose gradients go back
to their owners.

Shapes: S tokens of this rank, B rows, H heads of this rank, D a head's width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state, tensor_parallel
from torch import Tensor, nn

from rewardflow.train.megatron.context import positions_of


class CausalAttention(nn.Module):
    """Replaces Megatron's core attention, which holds all scores and does not support cut sequences."""

    def __init__(self, config: Any, layer_number: int, attn_mask_type: Any, attention_type: str, **_others: Any):
        super().__init__()
        self._context: dist.ProcessGroup = parallel_state.get_context_parallel_group()

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: None, **_others: Any) -> Tensor:
        """[S, B, H, D] to [S, B, H x D]."""
        queries, keys, values = (one.permute(1, 2, 0, 3) for one in (query, self._whole(key), self._whole(value)))
        is_cut = self._context.size() > 1
        seen = self._seen(query.shape[0], query.device) if is_cut else None
        found = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=seen, is_causal=not is_cut, enable_gqa=queries.shape[1] != keys.shape[1]
        )
        return found.permute(2, 0, 1, 3).flatten(2)

    def _whole(self, part: Tensor) -> Tensor:
        if self._context.size() == 1:
            return part
        whole: Tensor = tensor_parallel.gather_from_sequence_parallel_region(part.contiguous(), group=self._context)
        return whole

    def _seen(self, length: int, device: torch.device) -> Tensor:
        """For each query of this rank, which of the keys, as they are gathered, it may look at."""
        size = self._context.size()
        positions = [positions_of(length * size, rank, size, device) for rank in range(size)]
        return torch.cat(positions)[None, :] <= positions[self._context.rank()][:, None]
