"""What Megatron needs to know of a model, read from its Hugging Face configuration.

Always true: a shape belongs to a family whose weights `weight_names` knows, and whose computation is the one that
transformers makes; any other model is refused by name, before a weight is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rewardflow.errors import InvalidInput
from rewardflow.settings.run_settings import MegatronSettings

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class _Family:
    """What differs between the families. `rotary` is the class in which transformers computes the frequencies."""

    rotary: str
    qkv_bias: bool = False
    qk_norm: bool = False


_FAMILIES = {
    "llama": _Family("LlamaRotaryEmbedding"),
    "qwen2": _Family("Qwen2RotaryEmbedding", qkv_bias=True),
    "qwen3": _Family("Qwen3RotaryEmbedding", qk_norm=True),
}
# Frequencies that do not change with the length of a sequence, nor the scale of attention.
_ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a decoder of one of the families."""

    family: str
    num_layers: int
    hidden: int
    ffn_hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocabulary: int
    norm_eps: float
    qkv_bias: bool
    qk_norm: bool
    is_tied: bool  # input embeddings and output layer have one weight
    padding: int | None  # the token whose input embedding learns nothing, wherever it stands

    @classmethod
    def of(cls, config: Any) -> ModelShape:
        """Reads a configuration of transformers."""
        name = str(config.model_type)
        family = _FAMILIES.get(name)
        if family is None:
            raise InvalidInput(
                f"trainer.backend=megatron trains models of the families {', '.join(_FAMILIES)}, "
                f"got {name}; train it with trainer.backend=fsdp2"
            )
        _check_plain(config, name)
        return cls(
            family=name,
            num_layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            ffn_hidden=config.intermediate_size,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            vocabulary=config.vocab_size,
            norm_eps=config.rms_norm_eps,
            qkv_bias=family.qkv_bias,
            qk_norm=family.qk_norm,
            is_tied=bool(config.tie_word_embeddings),
            padding=config.pad_token_id,
        )


def check_fits(shape: ModelShape, settings: MegatronSettings) -> None:
    """Raises if the model cannot be cut like that; works without megatron-core."""
    for name, value, parts in (
        ("num_attention_heads", shape.num_heads, "tensor_parallel"),
        ("num_key_value_heads", shape.num_kv_heads, "tensor_parallel"),
        ("intermediate_size", shape.ffn_hidden, "tensor_parallel"),
        ("num_hidden_layers", shape.num_layers, "pipeline_parallel"),
    ):
        size = getattr(settings, parts)
        if value % size:
            raise InvalidInput(
                f"the model's {name} must be a multiple of trainer.megatron.{parts}, got {name}={value}, {parts}={size}"
            )


def rotary_frequencies(config: Any) -> Tensor:
    """Lets transformers compute the frequencies, so that this code need not know its scalings."""
    from importlib import import_module

    name = str(config.model_type)
    module = import_module(f"transformers.models.{name}.modeling_{name}")
    frequencies: Tensor = getattr(module, _FAMILIES[name].rotary)(config).inv_freq.clone()  # no longer a buffer
    return frequencies


def _check_plain(config: Any, family: str) -> None:
    """Refuses settings of a family whose computation Megatron's layers do not make."""
    rope = getattr(config, "rope_parameters", None) or {}
    rules: dict[str, tuple[object, object]] = {
        "hidden_act": (config.hidden_act, "silu"),
        "attention_dropout": (float(getattr(config, "attention_dropout", 0.0) or 0.0), 0.0),
        "attention_bias": (bool(getattr(config, "attention_bias", False)), False),
        "mlp_bias": (bool(getattr(config, "mlp_bias", False)), False),
        "use_sliding_window": (bool(getattr(config, "use_sliding_window", False)), False),
        "rope_parameters.partial_rotary_factor": (float(rope.get("partial_rotary_factor", 1.0)), 1.0),
    }
    for key, (value, wanted) in rules.items():
        if value != wanted:
            raise InvalidInput(f"a {family} model trained with Megatron must have {key}={wanted}, got {value}")
    rope_type = rope.get("rope_type", "default")
    if rope_type not in _ROPE_TYPES:
        raise InvalidInput(
            f"a {family} model trained with Megatron must have rotary positions of the type "
            f"{', '.join(_ROPE_TYPES)}, got {rope_type}"
        )
