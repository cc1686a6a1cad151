"""Sequences that several ranks share: which rank has which positions, and how their results are combined.

Always true: each rank has an early and a late piece, as Megatron lays them out, so that causal attention is about as
much work for all; one rank computes the result of a token, all ranks get it, and its gradient goes to that rank.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rewardflow.train.megatron.layout import Axis


def positions_of(length: int, rank: int, size: int, device: torch.device) -> Tensor:
    """Returns a rank's positions, in its order. With several ranks, the length is a multiple of twice the size."""
    positions = torch.arange(length, device=device)
    return positions if size == 1 else positions.view(2 * size, -1)[[rank, 2 * size - 1 - rank]].flatten()


def padded_length(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def places_of(position_N: Tensor, length: int, axis: Axis) -> tuple[Tensor, Tensor]:
    """Returns for each position whether this rank has it, and its index on this rank (0 where it does not)."""
    place_L = torch.full((length,), -1, dtype=torch.long, device=position_N.device)
    own = positions_of(length, axis.rank, axis.size, position_N.device)
    place_L[own] = torch.arange(len(own), device=position_N.device)
    place_N = place_L[position_N]
    return place_N >= 0, place_N.clamp(min=0)


def known_to_all(found_N: Tensor, axis: Axis) -> Tensor:
    """Sums the ranks' results, which are 0 where a rank has none. Each rank gets the gradient of its own."""
    summed: Tensor = _Summed.apply(found_N, axis.group) if axis.size > 1 else found_N  # type: ignore[no-untyped-call]
    return summed


class _Summed(torch.autograd.Function):
    """Passes the gradient through: all ranks compute the same loss of the sum, so each has the whole gradient."""

    @staticmethod
    def forward(ctx: Any, found: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = found.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None
