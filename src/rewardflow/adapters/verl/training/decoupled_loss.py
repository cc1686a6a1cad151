"""The policy loss `decoupled` for verl: PPO around the proximal policy, with weights for rollouts of an older policy.

Always true: `algo.losses` computes a token's loss and verl reduces it; the weights come with the batch, from trainer
mode `rewardflow` or from verl's own `algorithm.rollout_correction`; without weights the loss raises an error. Loaded by
verl only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verl.trainer.ppo.core_algos import agg_loss, register_policy_loss

from rewardflow.algo.losses import policy_loss
from rewardflow.errors import InvalidInput
from rewardflow.settings.run_settings import AlgorithmSettings

if TYPE_CHECKING:
    from torch import Tensor


@register_policy_loss("decoupled")
def decoupled_loss(
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Has verl's signature of a policy loss. `old_log_prob` is the proximal policy's."""
    if rollout_is_weights is None:
        raise InvalidInput(
            "loss_mode=decoupled weighs tokens by proximal over behaviour policy, got no weights: use trainer mode "
            "rewardflow, or set algorithm.rollout_correction.rollout_is=token"
        )
    clip = config.clip_ratio
    settings = AlgorithmSettings(
        loss="ppo",
        clip_low=clip if config.clip_ratio_low is None else config.clip_ratio_low,
        clip_high=clip if config.clip_ratio_high is None else config.clip_ratio_high,
        dual_clip=config.get("clip_ratio_c", 3.0),
    )
    loss = policy_loss(
        settings, log_probs_BT=log_prob, old_BT=old_log_prob, advantages_BT=advantages, mask_BT=response_mask
    )
    reduced: Tensor = agg_loss(
        loss_mat=loss.loss_BT * rollout_is_weights,
        loss_mask=response_mask,
        loss_agg_mode=loss_agg_mode,
        **config.global_batch_info,
    )
    count = max(float(loss.sums["tokens"]), 1.0)
    means = {name: float(value) / count for name, value in loss.sums.items() if name != "tokens"}
    return reduced, {
        "actor/pg_clipfrac": means["clipped_low"] + means["clipped_high"],
        "actor/ppo_kl": means["kl_old_k1"],
        "actor/pg_clipfrac_lower": means["clipped_dual"],
    }
