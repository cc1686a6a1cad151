"""Models of a few numbers, as transformers builds them."""

from __future__ import annotations

from transformers import AutoModelForCausalLM, MixtralConfig, PreTrainedModel, Qwen2Config

SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def dense(*, is_tied: bool) -> PreTrainedModel:
    return AutoModelForCausalLM.from_config(Qwen2Config(**SIZES, tie_word_embeddings=is_tied))


def mixture() -> PreTrainedModel:
    """transformers keeps its experts in one tensor, and saves each by itself."""
    return AutoModelForCausalLM.from_config(MixtralConfig(**SIZES, num_local_experts=4))
