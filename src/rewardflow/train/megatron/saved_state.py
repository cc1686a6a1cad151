"""Weights and optimizer state under their names in transformers, for torch.distributed.checkpoint.

Always true: the names, shapes and numbers are those of a trainer that holds the whole model, so any layout, and the
other back end, can read what one layout wrote; the weights are float32, whatever the model computes in. A weight that
the tensor axis cuts is a DTensor, so each rank writes and reads its own part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from rewardflow.checkpoint.model_state import SavedState
from rewardflow.policy.weights_by_name import WeightSource
from rewardflow.train.megatron.building import ModelPart
from rewardflow.train.megatron.gradients import MOMENTS, STEP, DistributedGradients, Remembered
from rewardflow.train.megatron.layout import Layout
from rewardflow.train.megatron.weight_conversion import (
    PartWeight,
    given_weights,
    local_weight,
    part_weights,
)
from rewardflow.train.megatron.weight_names import HFWeight, from_hf, to_hf, whole_model

MODEL, OPTIMIZER = "model.", "optimizer."


def state_of(part: ModelPart, gradients: DistributedGradients) -> dict[str, Tensor]:
    """Returns what this rank saves; nothing on ranks that only repeat another's. All ranks call it together."""
    rooms = _Rooms.of(part.layout)
    steps = gradients.steps_taken()
    state: dict[str, Tensor] = {}
    for weight in given_weights(part):
        remembered = gradients.recall(weight.parameter, steps)
        if part.layout.holders.rank == 0:
            state |= _named_state(weight, remembered, part, rooms)
    return state


def _named_state(weight: PartWeight, remembered: Remembered, part: ModelPart, rooms: _Rooms) -> dict[str, Tensor]:
    shapes = weight.part_shapes(part.layout)

    def pieces(of: Tensor) -> list[Tensor]:
        found = to_hf(weight.name, of, part.shape, shapes)
        return [rooms.placed(one, piece) for one, piece in zip(weight.holds, found, strict=True)]

    state = {MODEL + one.name: piece for one, piece in zip(weight.holds, pieces(remembered.weight), strict=True)}
    for field, moment in remembered.moments.items():
        for one, piece in zip(weight.holds, pieces(moment), strict=True):
            state[f"{OPTIMIZER}{one.name}.{field}"] = piece
            state[f"{OPTIMIZER}{one.name}.{STEP}"] = torch.tensor(remembered.step)
    return state


def read_state(part: ModelPart, gradients: DistributedGradients, saved: SavedState) -> None:
    """Reads weights and optimizer state. All ranks call it together."""
    saved.check_model(whole_model(part.shape))
    rooms = _Rooms.of(part.layout)
    fields = MOMENTS if any(name.startswith(OPTIMIZER) for name in saved.names) else ()
    wanted: dict[str, Tensor] = {}
    for weight in part_weights(part):
        for one in weight.holds:
            wanted[MODEL + one.name] = rooms.empty(one)
            for field in fields:
                wanted[f"{OPTIMIZER}{one.name}.{field}"] = rooms.empty(one)
                wanted[f"{OPTIMIZER}{one.name}.{STEP}"] = torch.zeros(())
    saved.fill(wanted)
    for weight in part_weights(part):
        gradients.put_back(weight.parameter, _remembered(weight, wanted, part, fields))


def _remembered(
    weight: PartWeight, found: Mapping[str, Tensor], part: ModelPart, fields: tuple[str, ...]
) -> Remembered:
    def joined(names: list[str]) -> Tensor:
        pieces = [_local(found[name]) for name in names]
        return from_hf(weight.name, pieces, part.shape, weight.parameter.shape)

    names = [one.name for one in weight.holds]
    steps = [float(found[f"{OPTIMIZER}{name}.{STEP}"]) for name in names if fields]
    return Remembered(
        weight=joined([MODEL + name for name in names]),
        moments={field: joined([f"{OPTIMIZER}{name}.{field}" for name in names]) for field in fields},
        step=max(steps, default=0.0),
    )


def put_weights(part: ModelPart, gradients: DistributedGradients, source: WeightSource) -> None:
    """Sets the float32 weights that the optimizer updates, where the model's own have fewer bits."""
    for weight in part_weights(part):
        value = local_weight(weight, source, part)
        gradients.put_back(weight.parameter, Remembered(weight=value.to(part.layout.device), moments={}))


@dataclass(frozen=True, slots=True)
class _Rooms:
    """Makes tensors that describe a whole weight, of which this rank has its part."""

    layout: Layout
    mesh: DeviceMesh | None

    @classmethod
    def of(cls, layout: Layout) -> _Rooms:
        is_cut = layout.tensor.size > 1
        return cls(layout, DeviceMesh.from_group(layout.tensor.group, layout.device.type) if is_cut else None)

    def placed(self, weight: HFWeight, piece: Tensor) -> Tensor:
        if self.mesh is None or weight.cut is None:
            return piece
        whole = torch.empty(weight.shape, device="meta")
        return DTensor.from_local(
            piece.contiguous(),
            self.mesh,
            [Shard(weight.cut)],
            run_check=False,
            shape=whole.shape,
            stride=whole.stride(),
        )

    def empty(self, weight: HFWeight) -> Tensor:
        axis = self.layout.tensor
        return self.placed(weight, torch.zeros(weight.part_shape(axis.rank, axis.size), device=self.layout.device))


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
