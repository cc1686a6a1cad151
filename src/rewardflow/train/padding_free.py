"""Checks that a model can take rows that follow one another, without padding between them.

Always true: a model that could let a row see another one is refused. transformers keeps the attention of a row within
it where positions start again: by lengths in flash attention, by a mask in all others. Layers that carry a state from
token to token ignore positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rewardflow.errors import InvalidInput

if TYPE_CHECKING:
    from torch import nn

_ATTENTIONS = ("sdpa", "eager", "flash_attention", "flex_attention", "kernels-community/")
_LAYERS = frozenset({"full_attention", "sliding_attention", "chunked_attention"})


def check_keeps_rows_apart(model: nn.Module) -> None:
    config = getattr(model, "config", None)
    attention = str(getattr(config, "_attn_implementation", None))
    if not attention.startswith(_ATTENTIONS):
        raise InvalidInput(
            "trainer.padding_free needs attention that transformers keeps within rows, such as policy.attention=sdpa "
            f"or flash_attention_2, got {attention}"
        )
    other = sorted(set(getattr(config, "layer_types", None) or ()) - _LAYERS)
    if other or getattr(model, "_is_stateful", False):
        raise InvalidInput(
            "trainer.padding_free needs a model whose layers all use attention, because others carry a state from one "
            f"row into the next, got {type(model).__name__} with {', '.join(other) or 'a state'}"
        )
