"""Spreads weights, gradients and optimizer state of one model over several ranks, by FSDP2.

Always true: a single rank runs the plain module, which is up to twice as fast as a sharded one; gradients accumulate in
float32 on each rank and are reduced once for an update; every rank takes part in every collective.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes that train one model together; without a group, one process."""

    device: torch.device
    group: dist.ProcessGroup | None = None

    @property
    def size(self) -> int:
        return 1 if self.group is None else self.group.size()

    def sum(self, values: Tensor) -> Tensor:
        """Returns the sum over all ranks, the same on each."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def maximum(self, values: Tensor) -> Tensor:
        """Returns the largest over all ranks, entry by entry, the same on each."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def most(self, count: int) -> int:
        """Returns the largest of the ranks' counts."""
        return int(self._reduce(torch.tensor(count), dist.ReduceOp.MAX)) if self.size > 1 else count

    def _reduce(self, values: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        if self.size == 1:
            return values
        reduced = values.to(self.device, copy=True)
        dist.all_reduce(reduced, operation, self.group)
        return reduced.to(values.device)


def shard(model: nn.Module, ranks: Ranks, *, compute: torch.dtype | None, offload: bool) -> None:
    """Spreads a model that is whole and equal on every rank, block by block; in place."""
    if ranks.group is None or ranks.size == 1:
        return
    mesh = DeviceMesh.from_group(ranks.group, ranks.device.type)
    precision = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    placement = CPUOffloadPolicy(pin_memory=ranks.device.type != "cpu") if offload else OffloadPolicy()
    block_names = set(getattr(model, "_no_split_modules", None) or ())  # transformers' names for a model's blocks
    for module in [*(module for module in model.modules() if type(module).__name__ in block_names), model]:
        fully_shard(module, mesh=mesh, mp_policy=precision, offload_policy=placement)


def is_sharded(model: nn.Module) -> bool:
    return isinstance(model, FSDPModule)


def reduce_gradients_in_next_backward(model: nn.Module, wanted: bool) -> None:
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(wanted)


def settle(model: nn.Module) -> None:
    """Frees the whole weights that a forward pass left, so that the model's weights are its shards again."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def whole(value: Tensor) -> Tensor:
    """Gathers a sharded tensor into one piece on each rank; returns any other tensor as it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value
