"""Corrects a loss for rollouts that another policy generated: weighs tokens, and rejects those too far off.

Always true: nothing here has a gradient; a rejected token adds nothing to the numerator but stays in the denominator,
which is known before any log-prob. With w = p_old / p_behaviour of each token:

    weights   token      w                                         sequence       the product of w over the response
    reject    token      w outside the range: the token            sequence       the product outside: the response
                                                                   sequence_mean  the geometric mean outside: the same

A weight above the cap rejects its token or response, or is truncated to the cap (truncated importance sampling).
Ratios are bounded to exp(-20) to exp(20).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rewardflow.algo.log_ratio import bounded, log_ratio
from rewardflow.settings.run_settings import AboveCap, AlgorithmSettings, RejectBy, WeighBy


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """The weight of each token's loss (None: all 1), the tokens that count (None: all), and sums like a loss's."""

    weights_BT: Tensor | None
    kept_BT: Tensor | None
    sums: Mapping[str, Tensor] = field(default_factory=dict)

    def apply(self, loss_BT: Tensor) -> Tensor:
        if self.weights_BT is not None:
            loss_BT = loss_BT * self.weights_BT
        return loss_BT if self.kept_BT is None else torch.where(self.kept_BT, loss_BT, 0.0)


@torch.no_grad()
def correction(settings: AlgorithmSettings, old_BT: Tensor, behaviour_BT: Tensor, mask_BT: Tensor) -> Correction:
    """Computes the correction that the settings ask for. `mask_BT` is the trained mask."""
    log_ratio_BT = log_ratio(old_BT, behaviour_BT, mask_BT)
    weights_BT = kept_BT = None
    sums: dict[str, Tensor] = {}
    if settings.weigh_by is not None:
        weights_BT, capped_BT = behaviour_weights(
            log_ratio_BT, mask_BT, settings.weigh_by, cap=settings.behaviour_weight_cap, above_cap=settings.above_cap
        )
        sums["behaviour_weight"] = weights_BT
        sums["behaviour_weight_squared"] = weights_BT.double().square()
        sums["behaviour_capped"] = capped_BT
    if settings.reject is not None:
        kept_BT = within_range(log_ratio_BT, mask_BT, settings.reject, settings.reject_outside)
        sums["rejected"] = mask_BT & ~kept_BT
    return Correction(
        weights_BT=weights_BT,
        kept_BT=kept_BT,
        sums={name: values_BT.sum(dtype=torch.float64) for name, values_BT in sums.items()},
    )


def behaviour_weights(
    log_ratio_BT: Tensor, mask_BT: Tensor, by: WeighBy, *, cap: float | None, above_cap: AboveCap
) -> tuple[Tensor, Tensor]:
    """Returns the weight of each token, 0 outside the mask, and which weights the cap changed."""
    if by == "sequence":
        log_ratio_BT = log_ratio_BT.sum(dim=-1, keepdim=True).expand_as(mask_BT)
    weights_BT = bounded(log_ratio_BT).exp()
    capped_BT = torch.zeros_like(mask_BT) if cap is None else mask_BT & (weights_BT > cap)
    if above_cap == "truncate" and cap is not None:
        return torch.where(mask_BT, weights_BT.clamp(max=cap), 0.0), capped_BT
    return torch.where(mask_BT & ~capped_BT, weights_BT, 0.0), capped_BT


def within_range(log_ratio_BT: Tensor, mask_BT: Tensor, by: RejectBy, bounds: tuple[float, float]) -> Tensor:
    """Marks the tokens of the mask whose ratio, or whose response's ratio, lies within the bounds."""
    measured_BT = bounded(log_ratio_BT)
    if by != "token":
        measured_BT = measured_BT.sum(dim=-1, keepdim=True)
    if by == "sequence_mean":
        measured_BT = measured_BT / mask_BT.sum(dim=-1, keepdim=True).clamp(min=1)
    low, high = map(math.log, bounds)
    return mask_BT & (measured_BT >= low) & (measured_BT <= high)
