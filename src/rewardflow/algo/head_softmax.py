"""Computes log-probs and entropies of tokens from hidden states and the head's weights, without all logits at once.

Always true: at most `KEPT_LOGITS` logits exist at a time. Where all of them are no more than that, they are computed
once; otherwise they are computed for some of the words at a time, and once more in the backward pass. The gradient of
each word's weights is one product over all tokens, so no gradient is rounded more often than with all logits at once.

Shapes: N tokens, V words, W of them at a time, D hidden.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rewardflow.algo.token_softmax import LOWEST, Entropy, gradient_without_token, scaled, token_softmax

KEPT_LOGITS = 1 << 26  # 256 MiB in float32
LOGITS_IN_BLOCK = 1 << 25


def head_softmax(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    token_ids_N: Tensor,
    *,
    temperature: float = 1.0,
    entropy: Entropy = "none",
    compute: torch.dtype | None = None,
    kept_logits: int = KEPT_LOGITS,
) -> tuple[Tensor, Tensor | None]:
    """As `token_softmax`, for the logits of a linear head. `compute` is the dtype of its products, as with autocast."""
    num_tokens, num_words = len(hidden_ND), len(weight_VD)
    dtype = compute or hidden_ND.dtype
    if num_tokens * num_words <= kept_logits:
        logits_NV = F.linear(hidden_ND.to(dtype), weight_VD.to(dtype), None if bias_V is None else bias_V.to(dtype))
        return token_softmax(logits_NV, token_ids_N, temperature=temperature, entropy=entropy)
    words_at_a_time = max(1, min(kept_logits, LOGITS_IN_BLOCK) // num_tokens)
    log_probs_N, entropy_N = _Blocks.apply(  # type: ignore[no-untyped-call]
        hidden_ND.to(dtype), weight_VD, bias_V, token_ids_N, temperature, entropy, words_at_a_time
    )
    return log_probs_N, None if entropy == "none" else entropy_N


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        token_ids_N: Tensor,
        temperature: float,
        entropy: Entropy,
        words_at_a_time: int,
    ) -> tuple[Tensor, Tensor]:
        """Keeps the largest logit so far, and sums relative to it, which a larger one rescales."""
        dtype = torch.promote_types(hidden_ND.dtype, torch.float32)
        largest_N = torch.full((len(hidden_ND),), -torch.inf, dtype=dtype, device=hidden_ND.device)
        total_N, weighted_N, chosen_N = torch.zeros(3, len(hidden_ND), dtype=dtype, device=hidden_ND.device)
        for first in range(0, len(weight_VD), words_at_a_time):
            block = slice(first, first + words_at_a_time)
            logits_NW = scaled(_logits(hidden_ND, weight_VD, bias_V, block), temperature, dtype)
            is_here_N, place_N = _places(token_ids_N, block, logits_NW.shape[-1])
            chosen_N = torch.where(is_here_N, logits_NW.gather(-1, place_N[:, None]).squeeze(-1), chosen_N)
            before_N, largest_N = largest_N, torch.maximum(largest_N, logits_NW.amax(-1))
            drop_N = (before_N - largest_N).clamp_(min=LOWEST)
            below_NW = logits_NW.sub_(largest_N[:, None])
            weights_NW = below_NW.exp()
            if entropy != "none":
                weighted_N = drop_N.exp() * (weighted_N + drop_N * total_N)
            total_N = drop_N.exp() * total_N + weights_NW.sum(-1)
            if entropy != "none":
                weighted_N = weighted_N + weights_NW.mul_(below_NW.clamp_(min=LOWEST)).sum(-1)
        log_total_N = total_N.log()
        entropy_N = log_total_N - weighted_N / total_N
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, token_ids_N, entropy_N, largest_N, total_N)
        ctx.temperature, ctx.words_at_a_time, ctx.trains_entropy = temperature, words_at_a_time, entropy == "trained"
        if not ctx.trains_entropy:
            ctx.mark_non_differentiable(entropy_N)
        return chosen_N - largest_N - log_total_N, entropy_N

    @staticmethod
    def backward(
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None, None]:
        hidden_ND, weight_VD, bias_V, token_ids_N, entropy_N, largest_N, total_N = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        grad_N1, from_entropy_N1 = (grad[:, None] / ctx.temperature for grad in grads)
        of_hidden_ND = torch.zeros(hidden_ND.shape, dtype=total_N.dtype, device=hidden_ND.device)
        of_weight_VD = torch.empty_like(weight_VD) if wants_weight else None
        of_bias_V = torch.empty_like(bias_V) if wants_bias else None
        for first in range(0, len(weight_VD), ctx.words_at_a_time):
            block = slice(first, first + ctx.words_at_a_time)
            logits_NW = scaled(_logits(hidden_ND, weight_VD, bias_V, block), ctx.temperature, total_N.dtype)
            grad_NW = gradient_without_token(
                logits_NW.sub_(largest_N[:, None]),
                total_N[:, None],
                entropy_N[:, None] if ctx.trains_entropy else None,
                grad_N1,
                from_entropy_N1,
            )
            is_here_N, place_N = _places(token_ids_N, block, grad_NW.shape[-1])
            grad_NW.scatter_add_(-1, place_N[:, None], grad_N1 * is_here_N[:, None])
            if of_bias_V is not None:
                of_bias_V[block] = grad_NW.sum(0)
            grad_NW = grad_NW.to(hidden_ND.dtype)
            if of_weight_VD is not None:
                of_weight_VD[block] = grad_NW.T @ hidden_ND
            if wants_hidden:
                of_hidden_ND += grad_NW @ weight_VD[block].to(hidden_ND.dtype)
        return of_hidden_ND.to(hidden_ND.dtype) if wants_hidden else None, of_weight_VD, of_bias_V, *(None,) * 4


def _logits(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, block: slice) -> Tensor:
    dtype = hidden_ND.dtype
    return F.linear(hidden_ND, weight_VD[block].to(dtype), None if bias_V is None else bias_V[block].to(dtype))


def _places(token_ids_N: Tensor, block: slice, num_words: int) -> tuple[Tensor, Tensor]:
    """Returns whether each token is a word of the block, and its place there."""
    place_N = token_ids_N - block.start
    is_here_N = (place_N >= 0) & (place_N < num_words)
    return is_here_N, torch.where(is_here_N, place_N, 0)
