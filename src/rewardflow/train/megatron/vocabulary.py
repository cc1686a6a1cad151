"""Log-probs and entropy of tokens whose logits are spread over ranks, each with some of the vocabulary.

Always true: no rank sees another's logits, only sums over them; the softmax is taken in float32, a bounded number of
logits at a time, and again in the backward pass instead of being kept; words that pad the vocabulary have no
probability; all ranks of the axis have the same result.

Shapes: N tokens, C of them at a time, W words of this rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rewardflow.algo.token_softmax import LOGITS_AT_A_TIME, Entropy
from rewardflow.train.megatron.layout import Axis
from rewardflow.train.megatron.weight_names import part_of
from rewardflow.train.token_log_probs import TokenScores


@dataclass(frozen=True, slots=True)
class Words:
    """The words that a rank's logits are for: `count` from `first` on, then padding."""

    axis: Axis
    first: int
    count: int

    @classmethod
    def of(cls, vocabulary: int, axis: Axis) -> Words:
        return cls(axis, *part_of(vocabulary, axis.rank, axis.size))


def vocabulary_log_probs(
    logits_NW: Tensor,
    token_ids_N: Tensor,
    words: Words,
    *,
    temperature: float,
    entropy: Entropy = "none",
    logits_at_a_time: int = LOGITS_AT_A_TIME,
) -> TokenScores:
    """Returns the scores of every token, under logits divided by the temperature."""
    chunk = max(1, logits_at_a_time // logits_NW.shape[-1])
    pieces = [
        _Softmax.apply(logits_CW, token_ids_C, words, temperature)  # type: ignore[no-untyped-call]
        for logits_CW, token_ids_C in zip(torch.split(logits_NW, chunk), torch.split(token_ids_N, chunk), strict=True)
    ]
    log_probs_N, entropy_N = (torch.cat(column) for column in zip(*pieces, strict=True))
    if entropy == "none":
        return TokenScores(log_probs_N, None)
    return TokenScores(log_probs_N, entropy_N if entropy == "trained" else entropy_N.detach())


class _Softmax(torch.autograd.Function):
    """Log-probs and entropies [C]."""

    @staticmethod
    def forward(
        ctx: Any, logits_CW: Tensor, token_ids_C: Tensor, words: Words, temperature: float
    ) -> tuple[Tensor, Tensor]:
        scaled_CW = _scaled(logits_CW, words, temperature)
        largest_C = scaled_CW.amax(-1)
        dist.all_reduce(largest_C, dist.ReduceOp.MAX, words.axis.group)
        shifted_CW = scaled_CW - largest_C[:, None]
        weights_CW = shifted_CW.exp()
        is_own_C, place_C = _places(token_ids_C, words)
        chosen_C = torch.where(is_own_C, shifted_CW.gather(-1, place_C[:, None]).squeeze(-1), 0.0)
        weighted_C = (weights_CW * shifted_CW.nan_to_num(neginf=0.0)).sum(-1)
        sums_3C = torch.stack([weights_CW.sum(-1), chosen_C, weighted_C])
        dist.all_reduce(sums_3C, group=words.axis.group)
        total_C, chosen_C, weighted_C = sums_3C
        normalizer_C = total_C.log()
        entropy_C = normalizer_C - weighted_C / total_C
        ctx.save_for_backward(logits_CW, token_ids_C, largest_C + normalizer_C, entropy_C)
        ctx.words, ctx.temperature = words, temperature
        return chosen_C - normalizer_C, entropy_C

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        of_log_probs_C, of_entropy_C = gradients
        logits_CW, token_ids_C, normalizer_C, entropy_C = ctx.saved_tensors
        log_probs_CW = _scaled(logits_CW, ctx.words, ctx.temperature) - normalizer_C[:, None]
        probs_CW = log_probs_CW.exp()
        surprise_CW = log_probs_CW.nan_to_num_(neginf=0.0) + entropy_C[:, None]
        grad_CW = -probs_CW * (of_log_probs_C[:, None] + of_entropy_C[:, None] * surprise_CW)
        is_own_C, place_C = _places(token_ids_C, ctx.words)
        grad_CW.scatter_add_(-1, place_C[:, None], (of_log_probs_C * is_own_C)[:, None])
        return (grad_CW / ctx.temperature).to(logits_CW.dtype), None, None, None


def _scaled(logits_CW: Tensor, words: Words, temperature: float) -> Tensor:
    scaled_CW = logits_CW.float() / temperature
    if words.count < scaled_CW.shape[-1]:
        scaled_CW[:, words.count :] = -torch.inf
    return scaled_CW


def _places(token_ids_C: Tensor, words: Words) -> tuple[Tensor, Tensor]:
    """Whether each token is one of this rank's words, and which."""
    place_C = token_ids_C - words.first
    is_own_C = (place_C >= 0) & (place_C < words.count)
    return is_own_C, torch.where(is_own_C, place_C, 0)
