"""Spreads weights, gradients and optimizer state of one model over several ranks, by FSDP2.

Always true: a single rank runs the plain module, which is up to twice as fast as a sharded one; between two passes a
rank holds its shards and nothing whole, so no weight is older than the last update; every backward pass reduces its
gradients in float32 and adds them to the shards' own; every rank takes part in every collective.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
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


def shard(model: nn.Module, ranks: Ranks, *, compute: torch.dtype | None) -> None:
    """Spreads a model that is equal on every rank, or an outline, over the ranks; in place, and once."""
    if ranks.group is None or ranks.size == 1 or is_sharded(model):
        return
    mesh = DeviceMesh.from_group(ranks.group, ranks.device.type)
    precision = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    for module in [*_groups(model), model]:
        # FSDP2 would keep the weights of the outermost group whole after a forward pass.
        fully_shard(module, mesh=mesh, mp_policy=precision, reshard_after_forward=True)


def is_sharded(model: nn.Module) -> bool:
    return isinstance(model, FSDPModule)


def _groups(model: nn.Module) -> list[nn.Module]:
    """Returns the modules whose weights are gathered together: each block, the embedding, and the head.

    An embedding and a head with the same weights stay with what is left, because a weight has one group.
    """
    block_names = set(getattr(model, "_no_split_modules", None) or ())  # transformers' names for a model's blocks
    blocks = [module for module in model.modules() if type(module).__name__ in block_names]
    getters = ("get_input_embeddings", "get_output_embeddings")  # of models of transformers
    ends = [getattr(model, getter)() for getter in getters if hasattr(model, getter)]
    ends = [module for module in ends if module is not None]
    is_tied = len({id(module.weight) for module in ends}) < len(ends)
    return blocks if is_tied else [*ends[:1], *blocks, *ends[1:]]


def whole(value: Tensor) -> Tensor:
    """Gathers a sharded tensor into one piece on each rank; returns any other tensor as it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value
