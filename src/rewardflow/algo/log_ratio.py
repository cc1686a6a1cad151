"""The difference of two policies' log-probs, which ratios, weights and KL estimates are made of.

Always true: it is at least float32, exactly 0 outside the mask in value and gradient, and differentiates the first
policy only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

MAX_LOG_RATIO = 20.0  # exp of it still has room in float32 when it is squared and summed


def log_ratio(log_probs_BT: Tensor, base_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """log p - log base for each token. The base is a fixed point, even when it is the same tensor."""
    dtype = torch.promote_types(log_probs_BT.dtype, torch.float32)
    difference_BT = log_probs_BT.to(dtype) - base_BT.detach().to(dtype)
    return torch.where(mask_BT.bool(), difference_BT, 0.0)


def bounded(log_ratio_BT: Tensor) -> Tensor:
    """Within what exp can take. Beyond the bound there is no gradient."""
    return log_ratio_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
