"""Computes the policy loss of each token; `aggregation` reduces it later.

Always true: `loss_BT` and every sum are exactly 0 for tokens outside the mask, and so is their gradient. `LOSSES` lists
all policy losses.

    ppo               max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)), r = p / p_old; for A < 0 at most -A dual_clip
    decoupled         the same, weighed by w = p_old / p_behaviour of each token unless the settings weigh otherwise
    cispo             -A clip(r, 1 - clip_low, 1 + clip_high) log p, the clipped r without gradient
    gspo              as ppo without dual_clip, r being the geometric mean of p / p_old over the response
    policy_gradient   -A log p

With `ratio_to: behaviour`, p_behaviour stands for p_old in r: the ratio itself corrects for rollouts that another
policy generated. With `ratio_to: old`, weights and rejection can (`correction`). In the decoupled form `old` is the
proximal policy, to which updates must stay close, and w corrects for the other policy that generated the rollouts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rewardflow.algo.correction import correction
from rewardflow.algo.log_ratio import bounded, log_ratio
from rewardflow.algo.lookup import look_up
from rewardflow.errors import InvalidInput
from rewardflow.settings.run_settings import AlgorithmSettings

MAX_LOG_SEQUENCE_RATIO = 10.0  # bound of a response's mean log ratio; above it the gradient is 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """The loss of each token, and sums over the tokens of the mask, which become metrics when divided.

    `sums` are float64, without gradient: `tokens`; `ratio`; `kl_old_k1` and `kl_old_k3`, estimates of the KL from the
    old policy to this one; `clipped_low`, `clipped_high` and `clipped_dual`, the numbers of tokens whose gradient a
    clip stops. With behaviour weights also `behaviour_weight` and `behaviour_weight_squared`, of the weights as
    applied, and `behaviour_capped`, the number of tokens with a weight above the cap. With rejection also `rejected`,
    the number of rejected tokens.
    """

    loss_BT: Tensor
    sums: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossKind:
    """An entry of the table; `formula` and `log_probs` are texts for the docs."""

    compute: Callable[[AlgorithmSettings, Tokens], TokenLoss]
    formula: str
    log_probs: str  # those it compares with; the settings may add behaviour log-probs to every loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The inputs of a loss, all of one shape. `behaviour_BT` is `old_BT` if the settings do not need it."""

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
    """Computes the loss that `settings.loss` names. Only `log_probs_BT` gets a gradient.

    If no update came since the old policy, `old_BT` may be `log_probs_BT` itself.
    """
    kind = look_up("loss", settings.loss, LOSSES)
    if behaviour_BT is None and settings.needs_behaviour:
        raise InvalidInput(
            f"loss={settings.loss} with ratio_to={settings.ratio_to}, behaviour_weights={settings.weigh_by}, "
            f"reject={settings.reject} compares policies by behaviour log-probs, got behaviour_BT=None"
        )
    base_BT = behaviour_BT if behaviour_BT is not None and settings.ratio_to == "behaviour" else old_BT
    tokens = Tokens(
        log_probs_BT=log_probs_BT,
        old_BT=base_BT,
        behaviour_BT=old_BT if behaviour_BT is None else behaviour_BT,
        advantages_BT=advantages_BT.detach(),
        mask_BT=mask_BT.bool(),
    )
    loss = kind.compute(settings, tokens)
    if settings.weigh_by is None and settings.reject is None:
        return loss
    corrected = correction(settings, tokens.old_BT, tokens.behaviour_BT, tokens.mask_BT)
    return TokenLoss(loss_BT=corrected.apply(loss.loss_BT), sums={**loss.sums, **corrected.sums})


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
        **_distances(log_ratio_BT, mask_BT),
        "clipped_low": is_bad_BT & (ratio_BT < lowest),
        "clipped_high": (advantages_BT > 0) & (ratio_BT > highest),
        "clipped_dual": dual_BT,
    }
    return TokenLoss(loss_BT=loss_BT, sums=_summed(sums))


def _cispo(settings: AlgorithmSettings, tokens: Tokens) -> TokenLoss:
    """Every token keeps a gradient: the clip bounds its weight and never stops it."""
    mask_BT = tokens.mask_BT
    log_ratio_BT = bounded(log_ratio(tokens.log_probs_BT, tokens.old_BT, mask_BT)).detach()
    ratio_BT = log_ratio_BT.exp()
    lowest, highest = 1 - settings.clip_low, 1 + settings.clip_high
    log_probs_BT = log_ratio(tokens.log_probs_BT, torch.zeros_like(tokens.log_probs_BT), mask_BT)
    advantages_BT = torch.where(mask_BT, tokens.advantages_BT.to(log_probs_BT.dtype), 0.0)
    sums = {
        **_distances(log_ratio_BT, mask_BT),
        "clipped_low": mask_BT & (ratio_BT < lowest),
        "clipped_high": mask_BT & (ratio_BT > highest),
    }
    return TokenLoss(loss_BT=-advantages_BT * ratio_BT.clamp(lowest, highest) * log_probs_BT, sums=_summed(sums))


def _gspo(settings: AlgorithmSettings, tokens: Tokens) -> TokenLoss:
    mask_BT = tokens.mask_BT
    log_ratio_BT = log_ratio(tokens.log_probs_BT, tokens.old_BT, mask_BT)
    with torch.no_grad():
        of_response_B1 = log_ratio_BT.sum(dim=-1, keepdim=True) / mask_BT.sum(dim=-1, keepdim=True).clamp(min=1)
    # The value is the response's ratio; the gradient is that of each token.
    through_token_BT = log_ratio(tokens.log_probs_BT, tokens.log_probs_BT, mask_BT)
    ratio_BT = (through_token_BT + of_response_B1).clamp(max=MAX_LOG_SEQUENCE_RATIO).exp()
    advantages_BT = torch.where(mask_BT, tokens.advantages_BT.to(ratio_BT.dtype), 0.0)
    lowest, highest = 1 - settings.clip_low, 1 + settings.clip_high

    loss_BT = torch.maximum(-advantages_BT * ratio_BT, -advantages_BT * ratio_BT.clamp(lowest, highest))
    sums = {
        **_distances(bounded(log_ratio_BT), mask_BT),
        "ratio": torch.where(mask_BT, ratio_BT, 0.0),
        "clipped_low": (advantages_BT < 0) & (ratio_BT < lowest),
        "clipped_high": (advantages_BT > 0) & (ratio_BT > highest),
    }
    return TokenLoss(loss_BT=loss_BT, sums=_summed(sums))


def _policy_gradient(settings: AlgorithmSettings, tokens: Tokens) -> TokenLoss:
    mask_BT = tokens.mask_BT
    log_probs_BT = log_ratio(tokens.log_probs_BT, torch.zeros_like(tokens.log_probs_BT), mask_BT)
    advantages_BT = torch.where(mask_BT, tokens.advantages_BT.to(log_probs_BT.dtype), 0.0)
    distances = _distances(bounded(log_ratio(tokens.log_probs_BT, tokens.old_BT, mask_BT)), mask_BT)
    return TokenLoss(loss_BT=-advantages_BT * log_probs_BT, sums=_summed(distances))


def _distances(log_ratio_BT: Tensor, mask_BT: Tensor) -> dict[str, Tensor]:
    """Returns the distances of the policy from the old one; all 0 outside the mask."""
    ratio_BT = log_ratio_BT.exp()
    return {
        "tokens": mask_BT,
        "ratio": torch.where(mask_BT, ratio_BT, 0.0),
        "kl_old_k1": -log_ratio_BT,
        "kl_old_k3": ratio_BT - 1 - log_ratio_BT,
    }


def _summed(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: values_BT.detach().sum(dtype=torch.float64) for name, values_BT in values.items()}


_PPO = "max(-A r, -A clip(r, 1 - `clip_low`, 1 + `clip_high`))"

LOSSES: Mapping[str, LossKind] = {
    "ppo": LossKind(
        compute=_ppo,
        formula=f"{_PPO} with r = p / p_old; where A < 0, at most -A `dual_clip`",
        log_probs="old",
    ),
    "decoupled": LossKind(
        compute=_ppo,
        formula="as `ppo`, with `behaviour_weights: token` where that is null",
        log_probs="old, behaviour",
    ),
    "cispo": LossKind(
        compute=_cispo,
        formula="-A clip(r, 1 - `clip_low`, 1 + `clip_high`) log p with r = p / p_old and no gradient through the clip",
        log_probs="old",
    ),
    "gspo": LossKind(
        compute=_gspo,
        formula=f"{_PPO} with r the geometric mean of p / p_old over the response",
        log_probs="old",
    ),
    "policy_gradient": LossKind(compute=_policy_gradient, formula="-A log p", log_probs="none"),
}
