"""How far apart two policies are on the tokens that were sampled: the one that generated and one in the trainer.

Always true: sums are float64, without gradient, over the tokens of the mask alone, and those of micro-batches add up to
those of the batch, however its rows are split; so do maxima, by taking the larger.

Between the engine's log-probs and the trainer's under the same weights it measures what the two compute differently;
between behaviour and present policy it measures staleness as well.
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
    """`one + other` is that of both. With w = p / p_behaviour, of tokens or, as a product, of responses.

    `sums`: `tokens`, `responses`; `prob_diff` and its square, of |p - p_behaviour|; `kl_k1` and `kl_k3`, estimates of
    KL(behaviour, policy); `ratio` and `response_ratio`, w, and their squares. `maxima`: `prob_diff`, `log_ratio` and
    `neg_log_ratio`, of log w and of -log w; -inf if there are no tokens.
    """

    sums: Mapping[str, Tensor]
    maxima: Mapping[str, Tensor]

    def __add__(self, other: OffPolicySums) -> OffPolicySums:
        return OffPolicySums(
            sums={name: total + other.sums[name] for name, total in self.sums.items()},
            maxima={name: torch.maximum(largest, other.maxima[name]) for name, largest in self.maxima.items()},
        )

    def measures(self) -> dict[str, float]:
        """What the sums say, divided; nothing if there are no tokens.

        The effective share is the share of samples that, weighed equally, would tell as much as these with weights w.
        """
        sums = {name: total.item() for name, total in self.sums.items()}
        tokens, responses = sums["tokens"], sums["responses"]
        if not tokens:
            return {}
        maxima = {name: largest.item() for name, largest in self.maxima.items()}
        return {
            "prob_diff_mean": sums["prob_diff"] / tokens,
            "prob_diff_max": maxima["prob_diff"],
            "prob_diff_std": _std(sums["prob_diff"], sums["prob_diff_squared"], tokens),
            "kl_k1": sums["kl_k1"] / tokens,
            "kl_k3": sums["kl_k3"] / tokens,
            "ratio_mean": sums["ratio"] / tokens,
            "ratio_max": math.exp(maxima["log_ratio"]),
            "ratio_min": math.exp(-maxima["neg_log_ratio"]),
            "ratio_std": _std(sums["ratio"], sums["ratio_squared"], tokens),
            "effective_share": sums["ratio"] ** 2 / (tokens * sums["ratio_squared"]),
            "response_effective_share": sums["response_ratio"] ** 2 / (responses * sums["response_ratio_squared"]),
        }


@torch.no_grad()
def off_policy_sums(log_probs_BT: Tensor, behaviour_BT: Tensor, mask_BT: Tensor) -> OffPolicySums:
    """Of one micro-batch. A response without a trained token does not count."""
    mask_BT = mask_BT.bool()
    exact_BT = log_ratio(log_probs_BT, behaviour_BT, mask_BT).double()
    log_ratio_BT = bounded(exact_BT)
    ratio_BT = torch.where(mask_BT, log_ratio_BT.exp(), 0.0)
    has_tokens_B = mask_BT.any(dim=-1)
    response_ratio_B = torch.where(has_tokens_B, bounded(exact_BT.sum(dim=-1)).exp(), 0.0)
    difference_BT = torch.where(mask_BT, (log_probs_BT.double().exp() - behaviour_BT.double().exp()).abs(), 0.0)
    values = {
        "tokens": mask_BT,
        "responses": has_tokens_B,
        "prob_diff": difference_BT,
        "prob_diff_squared": difference_BT.square(),
        "kl_k1": -exact_BT,
        "kl_k3": log_ratio_BT.exp() - 1 - log_ratio_BT,
        "ratio": ratio_BT,
        "ratio_squared": ratio_BT.square(),
        "response_ratio": response_ratio_B,
        "response_ratio_squared": response_ratio_B.square(),
    }
    extremes = {"prob_diff": difference_BT, "log_ratio": log_ratio_BT, "neg_log_ratio": -log_ratio_BT}
    return OffPolicySums(
        sums={name: value.sum(dtype=torch.float64) for name, value in values.items()},
        maxima={name: _largest(value_BT, mask_BT) for name, value_BT in extremes.items()},
    )


def _largest(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    return torch.cat([values_BT[mask_BT], values_BT.new_full((1,), -torch.inf)]).max()


def _std(total: float, total_squared: float, count: float) -> float:
    """The unbiased standard deviation, from the sums."""
    if count < 2:
        return 0.0
    return math.sqrt(max(0.0, total_squared - total * total / count) / (count - 1))
