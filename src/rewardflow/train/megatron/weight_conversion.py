"""Converts the weights of a rank's part from and to those of transformers.

Always true: weights come and go by their names in transformers, one at a time, so that no rank ever holds more of the
model than its part and one weight; of several stages that hold a weight, the first gives it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rewardflow.policy.weights_by_name import WeightSource
from rewardflow.train.megatron.building import ModelPart
from rewardflow.train.megatron.layout import Layout
from rewardflow.train.megatron.weight_names import HFWeight, from_hf, hf_weights, to_hf


@dataclass(frozen=True, slots=True)
class PartWeight:
    """A weight of Megatron's on this rank, and the weights of transformers that it holds."""

    name: str
    parameter: nn.Parameter
    holds: tuple[HFWeight, ...]

    def part_shapes(self, layout: Layout) -> list[tuple[int, ...]]:
        return [one.part_shape(layout.tensor.rank, layout.tensor.size) for one in self.holds]


def part_weights(part: ModelPart) -> list[PartWeight]:
    return [
        PartWeight(name, parameter, hf_weights(name, part.shape, part.first_layer))
        for name, parameter in part.gpt.named_parameters()
    ]


def given_weights(part: ModelPart) -> list[PartWeight]:
    """Returns the weights that this stage gives: a later stage's tied output layer is the first one's embedding."""
    weights = part_weights(part)
    is_copy = part.shape.is_tied and part.layout.pipeline.rank > 0
    return [weight for weight in weights if not (is_copy and weight.name == "output_layer.weight")]


def local_weight(weight: PartWeight, source: WeightSource, part: ModelPart) -> Tensor:
    """Returns this rank's part of a weight, as the source has it."""
    axis = part.layout.tensor
    pieces = [one.part(source(one.name), axis.rank, axis.size) for one in weight.holds]
    return from_hf(weight.name, pieces, part.shape, weight.parameter.shape)


@torch.no_grad()
def fill(part: ModelPart, source: WeightSource) -> None:
    """Sets every weight of this rank's part."""
    for weight in part_weights(part):
        weight.parameter.copy_(local_weight(weight, source, part))


@torch.no_grad()
def stage_weights(part: ModelPart) -> Iterator[tuple[str, Tensor]]:
    """Yields the whole weights of this rank's pipeline stage, by their names in transformers, one at a time.

    All ranks of the stage iterate together: each weight is gathered over the tensor axis when it is asked for.
    """
    for weight in given_weights(part):
        pieces = to_hf(weight.name, weight.parameter.detach(), part.shape, weight.part_shapes(part.layout))
        for one, piece in zip(weight.holds, pieces, strict=True):
            yield one.name, _gathered(one, piece, part.layout)


@torch.no_grad()
def all_weights(part: ModelPart) -> Iterator[tuple[str, Tensor]]:
    """Yields the whole weights of all stages, on every rank, one at a time: each stage sends its own to the others."""
    layout = part.layout
    own = stage_weights(part)
    dtype = next(part.gpt.parameters()).dtype
    for stage, names in enumerate(_names_by_stage(part)):
        for name, shape in names:
            weight = (
                next(own)[1] if stage == layout.pipeline.rank else torch.empty(shape, dtype=dtype, device=layout.device)
            )
            weight = weight.to(layout.device).contiguous()
            if layout.pipeline.size > 1:
                dist.broadcast(weight, dist.get_global_rank(layout.pipeline.group, stage), layout.pipeline.group)
            yield name, weight


def _names_by_stage(part: ModelPart) -> list[list[tuple[str, tuple[int, ...]]]]:
    axis = part.layout.pipeline
    own = [(one.name, one.shape) for weight in given_weights(part) for one in weight.holds]
    found: list[list[tuple[str, tuple[int, ...]]]] = [[] for _ in range(axis.size)]
    dist.all_gather_object(found, own, group=axis.group)
    return found


def _gathered(weight: HFWeight, piece: Tensor, layout: Layout) -> Tensor:
    """Joins the parts of the tensor axis, of which the last may be shorter."""
    axis = layout.tensor
    if weight.cut is None or axis.size == 1:
        return piece
    shapes = [weight.part_shape(rank, axis.size) for rank in range(axis.size)]
    room = piece.new_zeros(shapes[0])
    room.narrow(weight.cut, 0, piece.shape[weight.cut]).copy_(piece)
    rooms = [torch.empty_like(room) for _ in shapes]
    dist.all_gather(rooms, room, axis.group)
    parts = [one.narrow(weight.cut, 0, shape[weight.cut]) for one, shape in zip(rooms, shapes, strict=True)]
    return torch.cat(parts, weight.cut)
