"""Policy losses per token, not yet reduced: the clipped objective of PPO, and its decoupled form for stale rollouts.

Always true: `loss_BT` and every sum are exactly 0 for tokens outside the mask, and so is their gradient. `LOSSES` is
the one list of what there is and what it needs.

    ppo          max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)), r = p / p_old; for A < 0 at most -A dual_clip
    decoupled    the same times w = p_old / p_behaviour, without the tokens whose w is above behaviour_weight_cap

In the decoupled form `old` is the proximal policy, the one that updates must stay close to, and w corrects for the
rollouts having come from another. A token above the cap adds nothing to the numerator and stays in the denominator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rewardflow.algo.log_ratio import bounded, log_ratio
from rewardflow.algo.tables import choose
from rewardflow.config.tree import AlgorithmSettings
from rewardflow.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """The loss of each token, and sums over the masked tokens, from which metrics are made once they are divided.

    `sums` are float64, without gradient: `tokens`; `ratio`; `kl_old_k1` and `kl_old_k3`, estimates of the KL from the
    old policy to this one; `clipped_low`, `clipped_high` and `clipped_dual`, tokens that a clip keeps from pulling
    further. With behaviour log-probs also `behaviour_weight` and `behaviour_weight_squared` of the weights as they were
    applied, and `behaviour_capped`, tokens left out for their weight.
    """

    loss_BT: Tensor
    sums: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossKind:
    """An entry of the table."""

    compute: Callable[[AlgorithmSettings, Tokens], TokenLoss]
    needs_behaviour: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What a loss is computed from, of one shape. `behaviour_BT` is the old policy's where nothing needs it."""

    log_probs_BT: Tensor
    old_BT: Tensor
    behaviour_BT: Tensor
    advantages_BT: Tensor
    mask_BT: Tensor

    def __post_init__(self) -> None:
        for name in ("log_probs_BT", "old_BT", "behaviour_BT", "advantages_BT"):
            shape = tuple(getattr(self, name).shape)
            if shape != tuple(self.mask_BT.shape):
                raise InvalidInput(
                    f"{name} must have the shape of mask_BT, got {shape} and {tuple(self.mask_BT.shape)}"
                )


def policy_loss(
    settings: AlgorithmSettings,
    *,
    log_probs_BT: Tensor,
    old_BT: Tensor,
    behaviour_BT: Tensor | None = None,
    advantages_BT: Tensor,
    mask_BT: Tensor,
) -> TokenLoss:
    """The loss that `settings.loss` names. Only `log_probs_BT` is differentiated.

    Where the old policy is the present one, because nothing was updated since, `old_BT` may be `log_probs_BT` itself.
    """
    kind = choose("loss", settings.loss, LOSSES)
    if behaviour_BT is None and kind.needs_behaviour:
        raise InvalidInput(f"loss={settings.loss} weighs tokens by behaviour log-probs, got behaviour_BT=None")
    tokens = Tokens(
        log_probs_BT=log_probs_BT,
        old_BT=old_BT,
        behaviour_BT=old_BT if behaviour_BT is None else behaviour_BT,
        advantages_BT=advantages_BT.detach(),
        mask_BT=mask_BT.bool(),
    )
    return kind.compute(settings, tokens)


def _ppo(settings: AlgorithmSettings, tokens: Tokens) -> TokenLoss:
    mask_BT = tokens.mask_BT
    log_ratio_BT = bounded(log_ratio(tokens.log_probs_BT, tokens.old_BT, mask_BT))
    ratio_BT = log_ratio_BT.exp()
    advantages_BT = torch.where(mask_BT, tokens.advantages_BT.to(ratio_BT.dtype), 0.0)
    lowest, highest = 1 - settings.clip_low, 1 + settings.clip_high

    loss_BT = torch.maximum(-advantages_BT * ratio_BT, -advantages_BT * ratio_BT.clamp(lowest, highest))
    is_bad_BT = advantages_BT < 0
    dual_BT = torch.zeros_like(mask_BT)
    if settings.dual_clip is not None:
        loss_BT = torch.where(is_bad_BT, torch.minimum(loss_BT, -advantages_BT * settings.dual_clip), loss_BT)
        dual_BT = is_bad_BT & (ratio_BT > settings.dual_clip)
    sums = {
        "tokens": mask_BT,
        "ratio": torch.where(mask_BT, ratio_BT, 0.0),
        "kl_old_k1": -log_ratio_BT,
        "kl_old_k3": ratio_BT - 1 - log_ratio_BT,
        "clipped_low": is_bad_BT & (ratio_BT < lowest),
        "clipped_high": (advantages_BT > 0) & (ratio_BT > highest),
        "clipped_dual": dual_BT,
    }
    return TokenLoss(loss_BT=loss_BT, sums=_summed(sums))


def _decoupled(settings: AlgorithmSettings, tokens: Tokens) -> TokenLoss:
    proximal = _ppo(settings, tokens)
    with torch.no_grad():
        weights_BT = bounded(log_ratio(tokens.old_BT, tokens.behaviour_BT, tokens.mask_BT)).exp()
        capped_BT = torch.zeros_like(tokens.mask_BT)
        if settings.behaviour_weight_cap is not None:
            capped_BT = tokens.mask_BT & (weights_BT > settings.behaviour_weight_cap)
        weights_BT = torch.where(tokens.mask_BT & ~capped_BT, weights_BT, 0.0)
    sums = {
        "behaviour_weight": weights_BT,
        "behaviour_weight_squared": weights_BT.double().square(),
        "behaviour_capped": capped_BT,
    }
    return TokenLoss(loss_BT=proximal.loss_BT * weights_BT, sums={**proximal.sums, **_summed(sums)})


def _summed(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: values_BT.detach().sum(dtype=torch.float64) for name, values_BT in values.items()}


LOSSES: Mapping[str, LossKind] = {
    "ppo": LossKind(compute=_ppo, needs_behaviour=False),
    "decoupled": LossKind(compute=_decoupled, needs_behaviour=True),
}
