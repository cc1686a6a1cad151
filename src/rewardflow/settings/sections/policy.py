"""The settings of the policy model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rewardflow.settings.rules import check_choices

Dtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """The model to train. `tiny` is built in code; every other value is a name or path that transformers can load."""

    model: str = "tiny"  # `tiny`, a folder, or a name on the Hugging Face hub
    gguf_file: str | None = None  # the file in the model's folder that holds the weights
    tokenizer: str | None = None  # null: the model's tokenizer
    dtype: Dtype = "float32"  # type of the weights
    chat_template: str | None = None  # a Jinja template, or a file with one; null: the tokenizer's template
    gradient_checkpointing: bool = False  # recompute activations instead of keeping them
    trust_remote_code: bool = False  # allow code that comes with a model
    attention: str | None = None  # transformers' attn_implementation
    tiny_hidden: int = 64  # width of the tiny model
    tiny_layers: int = 2  # depth of the tiny model

    def __post_init__(self) -> None:
        check_choices(self)
