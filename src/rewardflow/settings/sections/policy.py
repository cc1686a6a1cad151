"""The settings of the policy model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rewardflow.errors import InvalidInput
from rewardflow.settings.rules import at_least, check_choices

Dtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """Trains low-rank adapters beside weights that do not change. The reference is the model without them."""

    rank: int = 16  # width of an adapter
    alpha: int = 32  # an adapter's output is multiplied by `alpha / rank`
    # names of linear layers that get an adapter, such as `q_proj`; null: all of them but the head
    targets: Sequence[str] | None = None

    def __post_init__(self) -> None:
        at_least("rank", self.rank, 1)
        at_least("alpha", self.alpha, 1)
        if self.targets is not None and not self.targets:
            raise InvalidInput("targets must name at least one layer, or be null for all of them, got none")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """The model to train. `tiny` is built in code; every other value is a name or path that transformers can load."""

    model: str = "tiny"  # `tiny`, a folder, or a name on the Hugging Face hub
    gguf_file: str | None = None  # the file in the model's folder that holds the weights
    tokenizer: str | None = None  # null: the model's tokenizer
    dtype: Dtype = "float32"  # type of the weights
    chat_template: str | None = None  # a Jinja template, or a file with one; null: the tokenizer's template
    # recompute activations instead of keeping them; null: on an accelerator
    gradient_checkpointing: bool | None = None
    trust_remote_code: bool = False  # allow code that comes with a model
    attention: str | None = None  # transformers' attn_implementation
    tiny_hidden: int = 64  # width of the tiny model
    tiny_layers: int = 2  # depth of the tiny model
    lora: LoraSettings | None = None

    def __post_init__(self) -> None:
        check_choices(self)
