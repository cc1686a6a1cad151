"""What pulls a critic's values to the returns that came, token by token, not yet reduced.

Always true: `loss_BT` and every sum are exactly 0 for tokens outside the mask, and so is their gradient.

    (v - return)^2 / 2; with a clip the larger of that and the same of v kept within `clip` of the value before

See https://arxiv.org/abs/1707.06347, and verl's `compute_value_loss`, which has the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueLoss:
    """`clipped_BT` is True for the tokens that the clip keeps from being pulled further."""

    loss_BT: Tensor
    clipped_BT: Tensor


def value_loss(values_BT: Tensor, old_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor, clip: float | None) -> ValueLoss:
    """Only `values_BT` is differentiated; `old_BT` are the values before the step's first update."""
    mask_BT = mask_BT.bool()
    # Left out before anything is computed: 0 times the gradient of a NaN is a NaN.
    values_BT, old_BT, returns_BT = (torch.where(mask_BT, one_BT, 0.0) for one_BT in (values_BT, old_BT, returns_BT))
    loss_BT = (values_BT - returns_BT).square()
    clipped_BT = torch.zeros_like(mask_BT)
    if clip is not None:
        kept_BT = values_BT.clamp(old_BT - clip, old_BT + clip)
        kept_loss_BT = (kept_BT - returns_BT).square()
        clipped_BT = kept_loss_BT > loss_BT
        loss_BT = torch.maximum(loss_BT, kept_loss_BT)
    return ValueLoss(loss_BT=0.5 * loss_BT, clipped_BT=clipped_BT)
