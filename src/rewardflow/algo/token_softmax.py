"""Computes the log-prob of the sampled token and the entropy of its distribution, from the same logits.

Always true: no tensor of the logits' size is allocated, except their gradient: everything else exists for a few tokens
at a time, in at least float32, and the backward pass computes it again. A token whose outputs get no gradient gets a
gradient of 0, even if its logits are NaN.

With z the logits minus their largest and s the sum of exp(z), the entropy is log s - sum(exp(z) z) / s. Both terms are
at least 0, so no digits are lost, however large the logits are.

Shapes: N tokens, C of them at a time, V words.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

Entropy = Literal["none", "measured", "trained"]  # measured: without a gradient

LOGITS_AT_A_TIME = 1 << 25  # 128 MiB in float32
CACHED_LOGITS = 1 << 18  # on a CPU, which is several times faster on data that fits its cache
# Replaces a logit of -inf: exp(z) is still 0, and so is exp(z) z, which would be NaN for -inf.
LOWEST = -1e4


def token_softmax(
    logits_NV: Tensor,
    token_ids_N: Tensor,
    *,
    temperature: float = 1.0,
    entropy: Entropy = "none",
    logits_at_a_time: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Returns log-probs, and entropies in nats unless `entropy` is `none`, of the distribution at this temperature."""
    most = logits_at_a_time or (CACHED_LOGITS if logits_NV.device.type == "cpu" else LOGITS_AT_A_TIME)
    num_tokens = max(1, most // max(1, logits_NV.shape[-1]))
    log_probs_N, entropy_N = _Softmax.apply(logits_NV, token_ids_N, temperature, entropy, num_tokens)  # type: ignore[no-untyped-call]
    return log_probs_N, None if entropy == "none" else entropy_N


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits_NV: Tensor, token_ids_N: Tensor, temperature: float, entropy: Entropy, num_tokens: int
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(logits_NV.dtype, torch.float32)
        log_probs_N, entropy_N, largest_N, total_N = torch.zeros(
            4, len(logits_NV), dtype=dtype, device=logits_NV.device
        )
        for first in range(0, len(logits_NV), num_tokens):
            chunk = slice(first, first + num_tokens)
            scaled_CV = scaled(logits_NV[chunk], temperature, dtype)
            largest_C1 = scaled_CV.amax(-1, keepdim=True)
            below_CV = scaled_CV - largest_C1
            chosen_C = below_CV.gather(-1, token_ids_N[chunk, None]).squeeze(-1)
            weights_CV = below_CV.exp()
            total_C = weights_CV.sum(-1)
            log_total_C = total_C.log()
            log_probs_N[chunk] = chosen_C - log_total_C
            largest_N[chunk], total_N[chunk] = largest_C1.squeeze(-1), total_C
            if entropy != "none":
                entropy_N[chunk] = log_total_C - weights_CV.mul_(below_CV.clamp_(min=LOWEST)).sum(-1) / total_C
        ctx.save_for_backward(logits_NV, token_ids_N, entropy_N, largest_N, total_N)
        ctx.temperature, ctx.num_tokens, ctx.dtype = temperature, num_tokens, dtype
        if entropy != "trained":
            ctx.mark_non_differentiable(entropy_N)
        ctx.trains_entropy = entropy == "trained"
        return log_probs_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        """Differentiates by the logit of word v: [v is the token] - p_v; for the entropy -p_v (log p_v + entropy)."""
        logits_NV, token_ids_N, entropy_N, largest_N, total_N = ctx.saved_tensors
        out_NV = torch.empty_like(logits_NV)
        for first in range(0, len(logits_NV), ctx.num_tokens):
            chunk = slice(first, first + ctx.num_tokens)
            below_CV = scaled(logits_NV[chunk], ctx.temperature, ctx.dtype) - largest_N[chunk, None]
            total_C1 = total_N[chunk, None]
            grad_C1, from_entropy_C1 = (grad[chunk, None] / ctx.temperature for grad in grads)
            entropy_C1 = entropy_N[chunk, None] if ctx.trains_entropy else None
            grad_CV = gradient_without_token(below_CV, total_C1, entropy_C1, grad_C1, from_entropy_C1)
            out_NV[chunk] = grad_CV.scatter_add_(-1, token_ids_N[chunk, None], grad_C1)
        return out_NV, None, None, None, None


def gradient_without_token(
    below_CV: Tensor, total_C1: Tensor, entropy_C1: Tensor | None, grad_C1: Tensor, from_entropy_C1: Tensor
) -> Tensor:
    """Returns the gradient of the logits but for what the sampled token adds; overwrites `below_CV`.

    `entropy_C1` is None if the entropy has no gradient. Gradients are divided by the temperature already.
    """
    if entropy_C1 is None:
        grad_CV = below_CV.exp_().mul_(-grad_C1 / total_C1)
    else:
        weights_CV = below_CV.exp()
        above_C1 = entropy_C1 - total_C1.log()
        slope_CV = below_CV.clamp_(min=LOWEST).add_(above_C1).mul_(from_entropy_C1).add_(grad_C1)
        grad_CV = weights_CV.mul_(slope_CV).mul_(-1 / total_C1)
    return grad_CV.masked_fill_((grad_C1 == 0) & (from_entropy_C1 == 0), 0.0)


def scaled(logits_CV: Tensor, temperature: float, dtype: torch.dtype) -> Tensor:
    """Returns the logits in `dtype`, divided by the temperature; the same tensor if that changes nothing."""
    logits_CV = logits_CV.to(dtype)
    return logits_CV if temperature == 1.0 else logits_CV / temperature
