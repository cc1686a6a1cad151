"""Checks that a model can take rows that follow one another, without padding between them.

Always true: a model that lets a row see another one, or counts its positions otherwise, is refused before it trains.
transformers keeps the attention of a row within it where positions start again: by lengths in flash attention, by a
mask in all others. Layers that carry a state from token to token ignore positions, and some models make their mask
without them. Names tell the former without weights; the latter shows in two passes of a loaded model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rewardflow.errors import InvalidInput
from rewardflow.train.packing import PackedRows, TokenRow, pack

if TYPE_CHECKING:
    from torch import nn

_ATTENTIONS = ("sdpa", "eager", "flash_attention", "flex_attention", "kernels-community/")
_LAYERS = frozenset({"full_attention", "sliding_attention", "chunked_attention"})

# Tokens that every vocabulary has. The first two are one row before the last, each in its own pass.
_ROWS = tuple(
    TokenRow(token_ids=tuple(map(int, digits)), sampled=range(1, len(digits)))
    for digits in ("01230123", "32103210", "1203123021")
)
_MAX_DIFFERENCE = 1e-3  # of log-probs
_MAX_ROUNDED_DIFFERENCE = 0.25  # where logits of ten or more are rounded to bfloat16 or TensorFloat-32


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


@torch.no_grad()
def check_rows_stay_apart(log_probs: Callable[[PackedRows], Tensor], device: torch.device, *, is_rounded: bool) -> None:
    """Raises if a row has other log-probs after other rows than alone.

    `log_probs` are those of a loaded model; `is_rounded`: it computes in less than float32. All ranks call it together.
    """
    *before, row = _ROWS
    alone, *joined = (
        log_probs(pack([*others, row], device, padding_free=True))[-len(row.sampled) :]
        for others in ([], *([one] for one in before))
    )
    most = _MAX_ROUNDED_DIFFERENCE if is_rounded else _MAX_DIFFERENCE
    if not all(torch.allclose(one, alone, rtol=0.0, atol=most) for one in joined):
        raise InvalidInput(
            "trainer.padding_free needs a model that keeps rows apart by their positions, and this one gives a row "
            "other log-probs after another row than alone; set trainer.padding_free=false, or another "
            "policy.attention, such as flash_attention_2"
        )
