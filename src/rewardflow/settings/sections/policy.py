"""The model that learns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rewardflow.settings.rules import check_choices

Dtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """The model that learns. `tiny` is built in code; everything else is a path that transformers can load."""

    model: str = "tiny"  # `tiny`, a folder, or a name on the Hugging Face hub
    gguf_file: str | None = None  # a file of the model's folder to read the weights from
    tokenizer: str | None = None  # null: the model's own
    dtype: Dtype = "float32"  # of the weights
    chat_template: str | None = None  # a Jinja template, or a file with one; null: the tokenizer's own
    gradient_checkpointing: bool = False  # compute activations twice instead of keeping them
    trust_remote_code: bool = False  # run the code that comes with a model
    attention: str | None = None  # transformers' attn_implementation
    tiny_hidden: int = 64  # width of the tiny model
    tiny_layers: int = 2  # depth of the tiny model

    def __post_init__(self) -> None:
        check_choices(self)
