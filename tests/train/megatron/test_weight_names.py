"""Weights of transformers become Megatron's and come back, for every family and every cut; needs no Megatron."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.errors import InvalidInput
from rewardflow.train.megatron.shape import ModelShape
from rewardflow.train.megatron.weight_names import HFWeight, from_hf, hf_weights, part_of, to_hf, whole_model

shapes = st.builds(
    lambda groups, per_group, head_dim, hidden, ffn, vocabulary, flags: ModelShape(
        family="qwen2",
        num_layers=2,
        hidden=hidden,
        ffn_hidden=4 * ffn,
        num_heads=4 * groups * per_group,
        num_kv_heads=4 * groups,
        head_dim=head_dim,
        vocabulary=vocabulary,
        norm_eps=1e-6,
        qkv_bias=flags[0],
        qk_norm=flags[1],
        is_tied=flags[2],
        padding=None,
    ),
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 20),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
NAMES = (
    "embedding.word_embeddings.weight",
    "output_layer.weight",
    "decoder.final_layernorm.weight",
    "decoder.layers.1.self_attention.linear_qkv.weight",
    "decoder.layers.0.self_attention.linear_proj.weight",
    "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight",
    "decoder.layers.0.mlp.linear_fc1.weight",
    "decoder.layers.1.mlp.linear_fc2.weight",
)


@given(shapes, st.sampled_from(NAMES), st.sampled_from([1, 2, 4]))
def test_what_ranks_hold_comes_back_as_it_was(shape: ModelShape, name: str, size: int) -> None:
    weights = hf_weights(name, shape)
    originals = [torch.randn(weight.shape) for weight in weights]
    found: list[list[torch.Tensor]] = [[] for _ in weights]
    for rank in range(size):
        parts = [weight.part(whole, rank, size) for weight, whole in zip(weights, originals, strict=True)]
        is_padded = "embedding" in name or "output" in name
        rows = -(-shape.vocabulary // size) if is_padded else sum(map(len, parts))
        local = from_hf(name, parts, shape, torch.Size([rows, *parts[0].shape[1:]]))
        back = to_hf(name, local, shape, [weight.part_shape(rank, size) for weight in weights])
        for column, piece, part in zip(found, back, parts, strict=True):
            assert torch.equal(piece, part)
            column.append(piece)
    for weight, pieces, original in zip(weights, found, originals, strict=True):
        joined = pieces[0] if weight.cut is None else torch.cat(pieces, weight.cut)
        assert torch.equal(joined, original)


@given(st.integers(0, 40), st.integers(1, 8))
def test_parts_follow_each_other_and_leave_nothing_out(length: int, size: int) -> None:
    parts = [part_of(length, rank, size) for rank in range(size)]
    assert [start for start, _ in parts] == [sum(n for _, n in parts[:rank]) for rank in range(size)]
    assert sum(number for _, number in parts) == length


def test_layers_of_a_later_stage_have_their_numbers_in_the_whole_model() -> None:
    shape = _shape()
    names = [weight.name for weight in hf_weights("decoder.layers.1.mlp.linear_fc1.weight", shape, first_layer=2)]
    assert names == ["model.layers.3.mlp.gate_proj.weight", "model.layers.3.mlp.up_proj.weight"]


def test_a_tied_output_layer_is_the_embedding() -> None:
    assert hf_weights("output_layer.weight", _shape())[0].name == "model.embed_tokens.weight"
    assert "lm_head.weight" not in whole_model(_shape())


def test_a_weight_that_the_family_does_not_have_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match=r"llama models have, got decoder.layers.0.mlp.router.weight"):
        hf_weights("decoder.layers.0.mlp.router.weight", _shape())
    with pytest.raises(InvalidInput, match=r"linear_qkv\.bias"):
        hf_weights("decoder.layers.0.self_attention.linear_qkv.bias", _shape())


def test_a_weight_of_another_shape_than_the_configuration_says_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"w is \(3, 2\), not \(2, 2\)"):
        HFWeight("w", (2, 2), 0).part(torch.zeros(3, 2), 0, 1)


def _shape() -> ModelShape:
    return ModelShape(
        family="llama",
        num_layers=4,
        hidden=8,
        ffn_hidden=16,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        vocabulary=11,
        norm_eps=1e-6,
        qkv_bias=False,
        qk_norm=False,
        is_tied=True,
        padding=None,
    )
