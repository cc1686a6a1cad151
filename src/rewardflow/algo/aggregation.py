"""Turns the losses of tokens into the loss of a batch: a numerator and a denominator that both add up.

Always true: numerators and denominators of micro-batches sum to those of the batch, however its rows are split. So the
trainer may accumulate gradients first and divide once. A failed rollout is in neither. Where a step has several
mini-batches, `token_share_divisor` makes a token weigh the same in each of them.

    token_mean             sum of tokens                    / trained tokens
    seq_mean_token_sum     sum of tokens                    / scored rollouts
    seq_mean_token_mean    sum of each rollout's mean       / scored rollouts
    fixed_length           sum of tokens                    / scored rollouts x max_response_tokens
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rewardflow.algo.lookup import look_up
from rewardflow.errors import InvalidInput
from rewardflow.settings.run_settings import Aggregation


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    divides_rows: bool  # each by its own number of trained tokens
    counts_tokens: bool = False
    count: Callable[[Tensor, Tensor, int], Tensor]  # arguments: trained mask, scored rows, longest response


_RULES: Mapping[str, _Rule] = {
    "token_mean": _Rule(divides_rows=False, counts_tokens=True, count=lambda mask_BT, scored_B, longest: mask_BT.sum()),
    "seq_mean_token_sum": _Rule(divides_rows=False, count=lambda mask_BT, scored_B, longest: scored_B.sum()),
    "seq_mean_token_mean": _Rule(divides_rows=True, count=lambda mask_BT, scored_B, longest: scored_B.sum()),
    "fixed_length": _Rule(divides_rows=False, count=lambda mask_BT, scored_B, longest: scored_B.sum() * longest),
}


def trained_mask(sampled_BT: Tensor, scored_B: Tensor) -> Tensor:
    """Marks the tokens that train: those that the policy sampled, in a scored rollout."""
    if sampled_BT.shape[:1] != scored_B.shape:
        raise InvalidInput(
            "scored_B must have one entry for each row of the mask, "
            f"got {tuple(scored_B.shape)} for a mask of {tuple(sampled_BT.shape)}"
        )
    return sampled_BT.bool() & scored_B.bool().unsqueeze(-1)


def token_weights(aggregation: Aggregation, mask_BT: Tensor) -> Tensor:
    """Returns float32 weights for `numerator`. `mask_BT` is the trained mask."""
    weights_BT = mask_BT.bool().float()
    if look_up("aggregation", aggregation, _RULES).divides_rows:
        return weights_BT / weights_BT.sum(dim=-1, keepdim=True).clamp(min=1)
    return weights_BT


def numerator(values_BT: Tensor, weights_BT: Tensor) -> Tensor:
    """Returns the weighted sum, in the values' dtype. Leaves out tokens of weight 0, because they may be NaN."""
    return torch.where(weights_BT > 0, values_BT * weights_BT, 0.0).sum()


def denominator(aggregation: Aggregation, mask_BT: Tensor, scored_B: Tensor, max_response_tokens: int) -> Tensor:
    """Returns a float64 scalar, 0 if no rollout was scored. The mask may be the trained one or all sampled tokens.

    A scored rollout counts even if none of its tokens trains.
    """
    count = look_up("aggregation", aggregation, _RULES).count
    return count(trained_mask(mask_BT, scored_B), scored_B.bool(), max_response_tokens).to(torch.float64)


def token_share_divisor(aggregation: Aggregation, token_share: float) -> float:
    """Returns by what to divide the denominator of a mini-batch with `token_share` times the mean number of tokens.

    Without it, a token of a mini-batch with few tokens would weigh more than one of a mini-batch with many. The
    aggregations that count rollouts need none: mini-batches do not differ in rollouts.
    """
    return token_share if look_up("aggregation", aggregation, _RULES).counts_tokens else 1.0
