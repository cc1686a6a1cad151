"""An outline has no memory for weights, and the buffers of the model itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from rewardflow.errors import InvalidInput
from rewardflow.policy.outline import give_room, outlined, set_weight_dtype

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "head_dim": 8,
}
LONG = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 5e5}
CONFIGS = [
    Qwen2Config(**SIZES),
    Qwen3Config(**SIZES, tie_word_embeddings=True),
    Gemma2Config(**SIZES),
    LlamaConfig(**SIZES, rope_parameters={**LONG, "original_max_position_embeddings": 64}),
]


def build(config: PretrainedConfig) -> nn.Module:
    model: nn.Module = AutoModelForCausalLM.from_config(config)
    return model


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.model_type)
def test_an_outline_has_every_weight_on_the_meta_device_and_every_buffer_with_its_values(
    config: PretrainedConfig,
) -> None:
    model, outline = build(config), outlined(lambda: build(config))
    weights, found = dict(model.named_parameters()), dict(outline.named_parameters())
    assert [(name, one.shape, one.dtype, one.requires_grad) for name, one in found.items()] == [
        (name, one.shape, one.dtype, one.requires_grad) for name, one in weights.items()
    ]
    assert all(one.is_meta for one in found.values())
    buffers = dict(outline.named_buffers())
    assert buffers.keys() == dict(model.named_buffers()).keys()
    assert all(torch.equal(buffers[name], one) for name, one in model.named_buffers())


def test_another_dtype_is_for_weights_and_leaves_buffers_and_ties() -> None:
    outline = outlined(lambda: build(CONFIGS[1]))
    before = {name: one.clone() for name, one in outline.named_buffers()}
    set_weight_dtype(outline, torch.bfloat16)
    assert {one.dtype for one in outline.parameters()} == {torch.bfloat16}
    assert all(torch.equal(one, before[name]) for name, one in outline.named_buffers())
    assert outline.get_input_embeddings().weight is outline.get_output_embeddings().weight  # type: ignore[operator]


def test_a_weight_that_is_made_with_values_and_used_twice_stays_one_weight() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Parameter(torch.ones(3), requires_grad=False)
            self.second = self.first

    model = outlined(Twice)
    assert model.first is model.second
    assert model.first.is_meta
    assert not model.first.requires_grad


def test_a_buffer_that_is_filled_later_is_refused_by_name() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.empty(3))

    with pytest.raises(InvalidInput, match="table"):
        outlined(Late)


def test_an_outline_that_gets_room_keeps_its_ties_and_buffers() -> None:
    model = outlined(lambda: build(Qwen2Config(**SIZES, tie_word_embeddings=True)))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    give_room(model, torch.device("cpu"))
    assert not any(weight.is_meta for weight in model.parameters())
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
