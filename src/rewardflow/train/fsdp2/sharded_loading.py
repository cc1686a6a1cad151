"""Loads models whose weights are spread over ranks, each rank its own rows.

Always true: a rank has room for its part alone, and reads the rows of one weight at a time; afterwards the model has
the weights and buffers that it would have if it had been loaded whole and spread then.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rewardflow.errors import InvalidInput
from rewardflow.policy.outline import give_room
from rewardflow.policy.weights_by_name import ALL_ROWS, WeightSource
from rewardflow.train.fsdp2.sharding import Ranks, is_sharded, shard


def load_sharded(model: nn.Module, source: WeightSource, ranks: Ranks, *, compute: torch.dtype | None) -> None:
    """Spreads an outline over the ranks, makes room for this rank's part on its device, and reads it."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    saved = model.state_dict().keys()
    shard(model, ranks, compute=compute)
    _give_room(model, ranks.device)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            part, rows = _own_part(name, weight)
            part.copy_(source(name, rows))
        for name, buffer in model.named_buffers():
            buffer.copy_(source(name) if name in saved else buffers[name])


def _give_room(model: nn.Module, device: torch.device) -> None:
    if not is_sharded(model):
        give_room(model, device)
        return
    model.to_empty(device=device)
    tie_weights = getattr(model, "tie_weights", None)  # of transformers
    if tie_weights is not None:  # room was made for each use of a weight
        tie_weights()


def _own_part(name: str, weight: Tensor) -> tuple[Tensor, slice]:
    """Returns this rank's part of a weight, in place, and the rows that it is."""
    if not isinstance(weight, DTensor):
        return weight, ALL_ROWS
    mesh, num_rows = weight.device_mesh, weight.shape[0]
    most = -(-num_rows // mesh.size())
    first = min(mesh.get_local_rank() * most, num_rows)
    rows = slice(first, min(first + most, num_rows))
    part: Tensor = weight.to_local()
    if len(part) != rows.stop - rows.start:
        raise InvalidInput(
            f"weights must be spread by rows, evenly but for the last, got {len(part)} of {num_rows} in {name}"
        )
    return part, rows
