"""Computes the difference of two policies' log-probs, the basis of ratios, weights and KL estimates.

Always true: the difference is at least float32, exactly 0 outside the mask in value and gradient, and has a gradient
only for the first policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

MAX_LOG_RATIO = 20.0  # float32 can still hold squares and sums of exp(20)


def log_ratio(log_probs_BT: Tensor, base_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Returns log p - log base for each token. The base gets no gradient, even if it is the same tensor."""
    dtype = torch.promote_types(log_probs_BT.dtype, torch.float32)
    difference_BT = log_probs_BT.to(dtype) - base_BT.detach().to(dtype)
    return torch.where(mask_BT.bool(), difference_BT, 0.0)


def bounded(log_ratio_BT: Tensor) -> Tensor:
    """Clamps to the range that is safe for exp. Outside the range the gradient is 0."""
    return log_ratio_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
