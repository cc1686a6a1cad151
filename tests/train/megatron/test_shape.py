"""What Megatron needs to know of a model is read from its configuration, and what it cannot compute is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import GPT2Config, LlamaConfig, Qwen2Config, Qwen2MoeConfig, Qwen3Config

from rewardflow.errors import InvalidInput
from rewardflow.settings.run_settings import MegatronSettings
from rewardflow.train.megatron.shape import ModelShape, check_fits, rotary_frequencies
from rewardflow.train.megatron.weight_names import whole_model

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "vocab_size": 17,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize("config", [LlamaConfig(**SIZES), Qwen2Config(**SIZES), Qwen3Config(**SIZES, head_dim=12)])
@pytest.mark.parametrize("is_tied", [True, False])
def test_the_whole_model_has_the_names_and_shapes_that_transformers_has(config: Any, is_tied: bool) -> None:
    from transformers import AutoModelForCausalLM

    config.tie_word_embeddings = is_tied
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    expected = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    assert whole_model(ModelShape.of(config)) == expected


@pytest.mark.parametrize(("config", "name"), [(GPT2Config(), "gpt2"), (Qwen2MoeConfig(), "qwen2_moe")])
def test_other_families_are_refused_by_name(config: Any, name: str) -> None:
    with pytest.raises(InvalidInput, match=rf"families llama, qwen2, qwen3, got {name}; .*backend=fsdp2"):
        ModelShape.of(config)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (LlamaConfig(**SIZES, attention_bias=True), "attention_bias=False, got True"),
        (LlamaConfig(**SIZES, mlp_bias=True), "mlp_bias=False, got True"),
        (LlamaConfig(**SIZES, hidden_act="gelu"), "hidden_act=silu, got gelu"),
        (Qwen3Config(**SIZES, attention_dropout=0.1), r"attention_dropout=0.0, got 0.1"),
        (Qwen2Config(**SIZES, use_sliding_window=True), "use_sliding_window=False, got True"),
        (
            LlamaConfig(**SIZES, rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}),
            "rotary positions of the type default, linear, llama3, got yarn",
        ),
    ],
)
def test_what_would_be_computed_otherwise_is_refused(config: Any, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        ModelShape.of(config)


def test_rotary_frequencies_are_those_of_transformers_with_their_scaling() -> None:
    plain = rotary_frequencies(LlamaConfig(**SIZES))
    linear = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
    scaled = rotary_frequencies(LlamaConfig(**SIZES, rope_parameters=linear))
    torch.testing.assert_close(scaled, plain / 2)


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"tensor_parallel": 3}, "num_attention_heads=4, tensor_parallel=3"),
        ({"tensor_parallel": 4}, "num_key_value_heads=2, tensor_parallel=4"),
        ({"pipeline_parallel": 4}, "num_hidden_layers=2, pipeline_parallel=4"),
    ],
)
def test_a_model_that_cannot_be_cut_like_that_is_refused_with_the_sizes(sizes: dict[str, int], told: str) -> None:
    shape = ModelShape.of(LlamaConfig(**SIZES))
    check_fits(shape, MegatronSettings(tensor_parallel=2, pipeline_parallel=2, context_parallel=3))
    with pytest.raises(InvalidInput, match=f"must be a multiple of trainer.megatron.*, got {told}"):
        check_fits(shape, MegatronSettings(**sizes))
