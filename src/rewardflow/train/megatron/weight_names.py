"""Maps weights between their names in transformers and in Megatron.

Always true: a rank of the tensor axis holds one run of rows or columns of the transformers weight, the same share for
each rank; so conversion needs no other rank, and round trips are exact. The same holds for anything shaped like the
weights: an optimizer's moments convert like them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rewardflow.errors import InvalidInput
from rewardflow.train.megatron.shape import ModelShape

_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")


@dataclass(frozen=True, slots=True)
class HFWeight:
    """A weight of transformers: its whole shape, and the dimension that the tensor axis cuts (None: all ranks have
    all).
    """

    name: str
    shape: tuple[int, ...]
    cut: int | None = None

    def part(self, whole: Tensor, rank: int, size: int) -> Tensor:
        """Returns what one of `size` ranks holds of the weight. The last may hold less."""
        if whole.shape != self.shape:
            raise InvalidInput(
                f"a weight must have the shape its configuration says: {self.name} is {tuple(whole.shape)}, "
                f"not {self.shape}"
            )
        if self.cut is None:
            return whole
        start, length = part_of(self.shape[self.cut], rank, size)
        return whole.narrow(self.cut, start, length)

    def part_shape(self, rank: int, size: int) -> tuple[int, ...]:
        if self.cut is None:
            return self.shape
        length = part_of(self.shape[self.cut], rank, size)[1]
        return (*self.shape[: self.cut], length, *self.shape[self.cut + 1 :])


def part_of(length: int, rank: int, size: int) -> tuple[int, int]:
    """Returns the start and length of a rank's part: equal parts, the last ones shorter or empty."""
    each = -(-length // size)
    start = min(rank * each, length)
    return start, min(each, length - start)


def hf_weights(name: str, shape: ModelShape, first_layer: int = 0) -> tuple[HFWeight, ...]:
    """Returns what a Megatron weight holds, in order. Layers are counted from the stage's first."""
    found = _LAYER.fullmatch(name)
    if found is None:
        weights = _outer_weights(shape).get(name)
    else:
        prefix = f"model.layers.{int(found[1]) + first_layer}."
        inner = _layer_weights(shape).get(found[2])
        weights = inner and tuple(HFWeight(prefix + one.name, one.shape, one.cut) for one in inner)
    if weights is None:
        raise InvalidInput(f"a weight of Megatron must be one that {shape.family} models have, got {name}")
    return weights


def whole_model(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every weight in transformers, by name; tied weights have one name."""
    layers = [
        HFWeight(f"model.layers.{number}.{one.name}", one.shape)
        for number in range(shape.num_layers)
        for weights in _layer_weights(shape).values()
        for one in weights
    ]
    outer = [one for weights in _outer_weights(shape).values() for one in weights]
    return {one.name: one.shape for one in (*outer, *layers)}


def to_hf(name: str, local: Tensor, shape: ModelShape, parts: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Converts a rank's Megatron weight to its parts of the transformers weights, whose shapes are given."""
    if ".linear_qkv." in name and len(parts) == 3:
        per_group = (shape.num_heads // shape.num_kv_heads + 2) * shape.head_dim
        groups = local.view(-1, per_group, *local.shape[1:])
        sizes = [per_group - 2 * shape.head_dim, shape.head_dim, shape.head_dim]
        return [piece.reshape(part) for piece, part in zip(torch.split(groups, sizes, 1), parts, strict=True)]
    if len(parts) == 2:
        return list(local.chunk(2))
    return [local[: parts[0][0]]]  # a vocabulary that does not divide is padded


def from_hf(name: str, parts: Sequence[Tensor], shape: ModelShape, local_shape: torch.Size) -> Tensor:
    """Inverts `to_hf`; rows that pad the vocabulary are 0."""
    if ".linear_qkv." in name and len(parts) == 3:
        rest = parts[0].shape[1:]
        num_groups = parts[1].shape[0] // shape.head_dim
        return torch.cat([part.reshape(num_groups, -1, *rest) for part in parts], 1).reshape(local_shape)
    if len(parts) == 2:
        return torch.cat(list(parts))
    part = parts[0]
    if part.shape == local_shape:
        return part
    padded = part.new_zeros(local_shape)
    padded[: part.shape[0]] = part
    return padded


def _outer_weights(shape: ModelShape) -> Mapping[str, tuple[HFWeight, ...]]:
    words = (shape.vocabulary, shape.hidden)
    embedding = HFWeight("model.embed_tokens.weight", words, 0)
    return {
        "embedding.word_embeddings.weight": (embedding,),
        "decoder.final_layernorm.weight": (HFWeight("model.norm.weight", (shape.hidden,)),),
        "output_layer.weight": (embedding if shape.is_tied else HFWeight("lm_head.weight", words, 0),),
    }


def _layer_weights(shape: ModelShape) -> Mapping[str, tuple[HFWeight, ...]]:
    """Of one layer. TransformerEngine keeps the norms with the linear layers that follow them."""
    hidden, ffn, dim = shape.hidden, shape.ffn_hidden, shape.head_dim
    heads = {"q": shape.num_heads * dim, "k": shape.num_kv_heads * dim, "v": shape.num_kv_heads * dim}
    attention_norm = (HFWeight("input_layernorm.weight", (hidden,)),)
    mlp_norm = (HFWeight("post_attention_layernorm.weight", (hidden,)),)
    weights = {
        "input_layernorm.weight": attention_norm,
        "self_attention.linear_qkv.layer_norm_weight": attention_norm,
        "self_attention.linear_qkv.weight": tuple(
            HFWeight(f"self_attn.{one}_proj.weight", (rows, hidden), 0) for one, rows in heads.items()
        ),
        "self_attention.linear_proj.weight": (HFWeight("self_attn.o_proj.weight", (hidden, heads["q"]), 1),),
        "pre_mlp_layernorm.weight": mlp_norm,
        "mlp.linear_fc1.layer_norm_weight": mlp_norm,
        "mlp.linear_fc1.weight": tuple(HFWeight(f"mlp.{one}_proj.weight", (ffn, hidden), 0) for one in ("gate", "up")),
        "mlp.linear_fc2.weight": (HFWeight("mlp.down_proj.weight", (hidden, ffn), 1),),
    }
    if shape.qkv_bias:
        weights["self_attention.linear_qkv.bias"] = tuple(
            HFWeight(f"self_attn.{one}_proj.bias", (rows,), 0) for one, rows in heads.items()
        )
    if shape.qk_norm:
        for one in ("q", "k"):
            weights[f"self_attention.{one}_layernorm.weight"] = (HFWeight(f"self_attn.{one}_norm.weight", (dim,)),)
    return weights
