"""Measures how far apart two policies are on the sampled tokens: the one that generated and one in the trainer.

Always true: sums are float64, without gradient, and only over the tokens of the mask; sums of micro-batches add up to
those of the batch, however its rows are split, and maxima combine by taking the larger.

Applied to the log-probs of engine and trainer under the same weights, it measures the numerical difference between the
two; applied to behaviour and current policy, it measures staleness as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rewardflow.algo.log_ratio import bounded, log_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicySums:
    """Sums and maxima that add up: `one + other` covers both. w is p / p_behaviour, for a response the product of them.

    `sums`: `tokens`, `responses`; `prob_diff`, which is |p - p_behaviour|, and its square; `kl_k1` and `kl_k3`,
    estimates of KL(behaviour, policy); `ratio` and `response_ratio`, which are w, and their squares. `maxima`:
    `prob_diff`, `log_ratio` and `neg_log_ratio`, which are log w and -log w; -inf if there are no tokens.
    """

    sums: Mapping[str, Tensor]
    maxima: Mapping[str, Tensor]

    def __add__(self, other: OffPolicySums) -> OffPolicySums:
        return OffPolicySums(
            sums={name: total + other.sums[name] for name, total in self.sums.items()},
            maxima={name: torch.maximum(largest, other.maxima[name]) for name, largest in self.maxima.items()},
        )

    def measures(self) -> dict[str, float]:
        """Divides the sums into metrics; returns none if there are no tokens.

        The effective share is the share of samples that, weighed equally, would carry as much information as all of
        them weighed by w.
        """
        sums = {name: total.item() for name, total in self.sums.items()}
        maxima = {name: largest.item() for name, largest in self.maxima.items()}
        return {**prob_diff_measures(sums, maxima), **ratio_measures(sums, maxima)}


def prob_diff_measures(sums: Mapping[str, float], maxima: Mapping[str, float]) -> dict[str, float]:
    """Computes the `prob_diff` metrics from the sums and maxima of `OffPolicySums`; none if there are no tokens."""
    tokens = sums.get("tokens", 0.0)
    if not tokens:
        return {}
    return {
        "prob_diff_mean": sums["prob_diff"] / tokens,
        "prob_diff_max": maxima["prob_diff"],
        "prob_diff_std": _std(sums["prob_diff"], sums["prob_diff_squared"], tokens),
    }


def ratio_measures(sums: Mapping[str, float], maxima: Mapping[str, float]) -> dict[str, float]:
    """Computes the other metrics, as `prob_diff_measures` does."""
    tokens = sums.get("tokens", 0.0)
    if not tokens:
        return {}
    responses = sums["responses"]
    return {
        "kl_k1": sums["kl_k1"] / tokens,
        "kl_k3": sums["kl_k3"] / tokens,
        "ratio_mean": sums["ratio"] / tokens,
        "ratio_max": math.exp(maxima["log_ratio"]),
        "ratio_min": math.exp(-maxima["neg_log_ratio"]),
        "ratio_std": _std(sums["ratio"], sums["ratio_squared"], tokens),
        "effective_share": sums["ratio"] ** 2 / (tokens * sums["ratio_squared"]),
        "response_effective_share": sums["response_ratio"] ** 2 / (responses * sums["response_ratio_squared"]),
    }


def off_policy_sums(log_probs_BT: Tensor, behaviour_BT: Tensor, mask_BT: Tensor) -> OffPolicySums:
    """Computes the sums of one micro-batch. A response without a trained token does not count."""
    differences = prob_diff_sums(log_probs_BT, behaviour_BT, mask_BT)
    ratios = ratio_sums(log_probs_BT, behaviour_BT, mask_BT)
    return OffPolicySums(sums={**differences.sums, **ratios.sums}, maxima={**differences.maxima, **ratios.maxima})


@torch.no_grad()
def prob_diff_sums(log_probs_BT: Tensor, other_BT: Tensor, mask_BT: Tensor) -> OffPolicySums:
    """Computes `tokens` and the `prob_diff` sums."""
    mask_BT = mask_BT.bool()
    difference_BT = torch.where(mask_BT, (log_probs_BT.double().exp() - other_BT.double().exp()).abs(), 0.0)
    values = {"tokens": mask_BT, "prob_diff": difference_BT, "prob_diff_squared": difference_BT.square()}
    return _summed(values, {"prob_diff": difference_BT}, mask_BT)


@torch.no_grad()
def ratio_sums(log_probs_BT: Tensor, behaviour_BT: Tensor, mask_BT: Tensor) -> OffPolicySums:
    """Computes all sums but those of `prob_diff`."""
    mask_BT = mask_BT.bool()
    exact_BT = log_ratio(log_probs_BT, behaviour_BT, mask_BT).double()
    log_ratio_BT = bounded(exact_BT)
    unmasked_BT = log_ratio_BT.exp()  # 1 outside the mask
    ratio_BT = torch.where(mask_BT, unmasked_BT, 0.0)
    has_tokens_B = mask_BT.any(dim=-1)
    response_ratio_B = torch.where(has_tokens_B, bounded(exact_BT.sum(dim=-1)).exp(), 0.0)
    values = {
        "tokens": mask_BT,
        "responses": has_tokens_B,
        "kl_k1": -exact_BT,
        "kl_k3": unmasked_BT - 1 - log_ratio_BT,
        "ratio": ratio_BT,
        "ratio_squared": ratio_BT.square(),
        "response_ratio": response_ratio_B,
        "response_ratio_squared": response_ratio_B.square(),
    }
    return _summed(values, {"log_ratio": log_ratio_BT, "neg_log_ratio": -log_ratio_BT}, mask_BT)


def _summed(values: Mapping[str, Tensor], extremes: Mapping[str, Tensor], mask_BT: Tensor) -> OffPolicySums:
    return OffPolicySums(
        sums={name: value.sum(dtype=torch.float64) for name, value in values.items()},
        maxima={name: _largest(value_BT, mask_BT) for name, value_BT in extremes.items()},
    )


def _largest(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Returns the largest value in the mask, or -inf. Avoids a wait for the device to count the tokens."""
    nothing = values_BT.new_full((1,), -torch.inf)
    return torch.cat([torch.where(mask_BT, values_BT, -torch.inf).flatten(), nothing]).max()


def _std(total: float, total_squared: float, count: float) -> float:
    """Returns the unbiased standard deviation, from the sums."""
    if count < 2:
        return 0.0
    return math.sqrt(max(0.0, total_squared - total * total / count) / (count - 1))
