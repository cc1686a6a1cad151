"""What verl 0.9.1 computes, called as its trainer calls it, for the tensors of our tests."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy
import torch
from algo.groups import ScoredBatch
from torch import Tensor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from verl import DataProto
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo import core_algos
    from verl.trainer.ppo.rollout_corr_helper import (
        compute_offpolicy_metrics,
        compute_rollout_correction_weights,
        compute_rollout_rejection_mask,
    )
    from verl.utils.debug.metrics import calculate_debug_metrics
    from verl.workers.config import ActorConfig

from rewardflow.algo.estimators.remax import is_greedy
from rewardflow.settings.run_settings import AlgorithmSettings

LOSS_NAMES = {"ppo": "vanilla", "decoupled": "vanilla", "cispo": "cispo", "gspo": "gspo", "policy_gradient": "gpg"}
REJECT_NAMES = {"token": "token_k1", "sequence": "seq_sum_k1", "sequence_mean": "seq_mean_k1"}


def advantages(
    name: str, batch: ScoredBatch, *, normed: bool = True, discount: float = 1.0, rewards_BT: Tensor | None = None
) -> Tensor:
    """[B, T]. For remax, rows of greedy rollouts are 0, which verl has in no batch."""
    index = numpy.array([rollout.group_id for rollout, _ in batch.scored])
    rewards_BT = batch.scores_BT if rewards_BT is None else rewards_BT
    given: dict[str, Any] = {
        "token_level_rewards": rewards_BT.clone(),
        "response_mask": batch.mask_BT,
        "config": AlgoConfig(gamma=discount, norm_adv_by_std_in_grpo=normed),
    }
    if name == "grpo":
        given["norm_adv_by_std_in_grpo"] = normed
    if name == "remax":
        greedy = {rollout.group_id: score for rollout, score in batch.scored if is_greedy(rollout)}
        given["reward_baselines"] = torch.tensor([greedy[group_id] for group_id in index])
    elif name != "reinforce_plus_plus":
        given["index"] = index
    found_BT: Tensor = core_algos.get_adv_estimator_fn(name)(**given)[0]
    if name == "remax":
        found_BT[[is_greedy(rollout) for rollout, _ in batch.scored]] = 0.0
    return found_BT * batch.mask_BT


def rewards_less_kl(batch: ScoredBatch, coef: float, estimator: str) -> Tensor:
    """As verl's apply_kl_penalty, whose module cannot be imported without a server for generation."""
    kl_BT = core_algos.kl_penalty(batch.spread_out(batch.old), batch.spread_out(batch.reference), estimator)
    return batch.scores_BT - coef * kl_BT * batch.mask_BT


def kl_mean(batch: ScoredBatch, estimator: str) -> float:
    """What verl shows its controller: the mean over rollouts of the mean over tokens."""
    kl_BT = core_algos.kl_penalty(batch.spread_out(batch.old), batch.spread_out(batch.reference), estimator)
    return float(((kl_BT * batch.mask_BT).sum(-1) / batch.mask_BT.sum(-1)).mean())


def gae(rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, discount: float, lam: float) -> tuple[Tensor, Tensor]:
    return core_algos.compute_gae_advantage_return(rewards_BT, values_BT, mask_BT, discount, lam)


def value_loss(
    values_BT: Tensor, old_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor, clip: float | None
) -> tuple[Tensor, float, Tensor]:
    """The sum over tokens, the share that was clipped, and the gradient of each token."""
    leaf_BT = values_BT.clone().requires_grad_()
    mean, clipped = core_algos.compute_value_loss(leaf_BT, returns_BT, old_BT, mask_BT, 1e30 if clip is None else clip)
    total = mean * mask_BT.sum()
    total.backward()
    assert leaf_BT.grad is not None
    return total.detach(), float(clipped), leaf_BT.grad


def kl(log_probs_BT: Tensor, reference_BT: Tensor, estimator: str) -> tuple[Tensor, Tensor]:
    """Estimate and gradient of each token."""
    leaf_BT = log_probs_BT.clone().requires_grad_()
    kl_BT = core_algos.kl_penalty(leaf_BT, reference_BT, estimator)
    kl_BT.sum().backward()
    assert leaf_BT.grad is not None
    return kl_BT.detach(), leaf_BT.grad


def weights(settings: AlgorithmSettings, old_BT: Tensor, behaviour_BT: Tensor, mask_BT: Tensor) -> Tensor | None:
    """A bound that only leaves out what is above it is written with a lower one that nothing is below."""
    if settings.weigh_by is None:
        return None
    cap = 1e30 if settings.behaviour_weight_cap is None else settings.behaviour_weight_cap
    bound: float | str = cap if settings.above_cap == "truncate" else f"1e-30_{cap}"
    with torch.no_grad():
        found: Tensor = compute_rollout_correction_weights(old_BT - behaviour_BT, mask_BT, settings.weigh_by, bound)[0]
    return found


def kept(settings: AlgorithmSettings, old_BT: Tensor, behaviour_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """verl bounds the ratio the other way round."""
    if settings.reject is None:
        return mask_BT
    low, high = settings.reject_outside
    found: Tensor = compute_rollout_rejection_mask(
        old_BT - behaviour_BT, mask_BT, REJECT_NAMES[settings.reject], f"{1 / high}_{1 / low}"
    )[0]
    return found


def loss(settings: AlgorithmSettings, tokens: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The sum over tokens, and the gradient of each."""
    leaf_BT = tokens["log_probs_BT"].clone().requires_grad_()
    old_BT, behaviour_BT, mask_BT = tokens["old_BT"], tokens["behaviour_BT"], tokens["mask_BT"]
    kept_BT = kept(settings, old_BT, behaviour_BT, mask_BT)
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=settings.clip_low,
        clip_ratio_high=settings.clip_high,
        clip_ratio_c=settings.dual_clip or 1e30,
    )
    mean, _ = core_algos.get_policy_loss_fn(LOSS_NAMES[settings.loss])(
        old_log_prob=old_BT,
        log_prob=leaf_BT,
        advantages=tokens["advantages_BT"],
        response_mask=kept_BT,
        loss_agg_mode="token-mean",
        config=config,
        rollout_is_weights=weights(settings, old_BT, behaviour_BT, mask_BT),
    )
    total = mean * (kept_BT.sum() + 1e-8)
    total.backward()
    assert leaf_BT.grad is not None
    return total.detach(), leaf_BT.grad


def adapted(coef: float, target: float, horizon: int, seen: list[tuple[float, int]]) -> list[float]:
    controller = core_algos.AdaptiveKLController(coef, target, horizon)
    found = []
    for kl_seen, num_rollouts in seen:
        controller.update(kl_seen, num_rollouts)
        found.append(float(controller.value))
    return found


def off_policy(log_probs_BT: Tensor, behaviour_BT: Tensor, mask_BT: Tensor) -> dict[str, float]:
    """Under our names."""
    data = DataProto.from_dict(
        tensors={
            "rollout_log_probs": behaviour_BT,
            "old_log_probs": log_probs_BT,
            "response_mask": mask_BT,
            "responses": mask_BT,
        }
    )
    differences = calculate_debug_metrics(data)
    apart = compute_offpolicy_metrics(log_probs_BT, behaviour_BT, mask_BT)
    weighed = compute_rollout_correction_weights(log_probs_BT - behaviour_BT, mask_BT, "token", 1e9)[1]
    return {
        "prob_diff_mean": differences["training/rollout_probs_diff_mean"],
        "prob_diff_max": differences["training/rollout_probs_diff_max"],
        "prob_diff_std": differences["training/rollout_probs_diff_std"],
        "kl_k1": apart["kl"],
        "kl_k3": apart["k3_kl"],
        "ratio_mean": weighed["rollout_is_mean"],
        "ratio_max": weighed["rollout_is_max"],
        "ratio_min": weighed["rollout_is_min"],
        "effective_share": weighed["rollout_is_eff_sample_size"],
    }
