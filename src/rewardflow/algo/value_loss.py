"""Computes the loss of a critic's values for each token; `aggregation` reduces it later.

Always true: `loss_BT` and every sum are exactly 0 for tokens outside the mask, and so is their gradient.

    (v - return)^2 / 2; with a clip, the larger of that and the same for v clamped to within `clip` of the old value

See https://arxiv.org/abs/1707.06347, and verl's `compute_value_loss`, which gives the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueLoss:
    """The loss of each token; `clipped_BT` marks the tokens whose gradient the clip stops."""

    loss_BT: Tensor
    clipped_BT: Tensor


def value_loss(values_BT: Tensor, old_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor, clip: float | None) -> ValueLoss:
    """Only `values_BT` gets a gradient; `old_BT` are the values before the step's first update."""
    mask_BT = mask_BT.bool()
    # Masked before any computation: 0 times the gradient of a NaN is a NaN.
    values_BT, old_BT, returns_BT = (torch.where(mask_BT, one_BT, 0.0) for one_BT in (values_BT, old_BT, returns_BT))
    loss_BT = (values_BT - returns_BT).square()
    clipped_BT = torch.zeros_like(mask_BT)
    if clip is not None:
        kept_BT = values_BT.clamp(old_BT - clip, old_BT + clip)
        kept_loss_BT = (kept_BT - returns_BT).square()
        clipped_BT = kept_loss_BT > loss_BT
        loss_BT = torch.maximum(loss_BT, kept_loss_BT)
    return ValueLoss(loss_BT=0.5 * loss_BT, clipped_BT=clipped_BT)
