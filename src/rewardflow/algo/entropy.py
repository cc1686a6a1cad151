"""The entropy of the policy at each token, from its logits.

Always true: no tensor the size of the logits is made, except the gradient itself: probabilities exist for one chunk of
tokens at a time, in at least float32, and the backward pass computes them again. A token whose entropy is not asked for
has no gradient, even if its logits are NaN.

Plain autograd would keep two such tensors. Summing -p log p, and not log-sum-exp(z) - sum(p z), keeps the digits that
the subtraction loses when logits are large, and gives words with a logit of -inf the 0 they should have.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

CHUNK_TOKENS = 256


def token_entropy(logits_BTV: Tensor) -> Tensor:
    """Entropy in nats, one for each token; the last dimension of the logits is the vocabulary, the one before, time."""
    entropy_BT: Tensor = _Entropy.apply(logits_BTV)  # type: ignore[no-untyped-call]
    return entropy_BT


def _chunks(whole: Tensor, rows: int, dim: int) -> tuple[Tensor, ...]:
    """Views along time. Flattening rows and time first would copy logits from which the last token was cut off."""
    return torch.split(whole, max(1, CHUNK_TOKENS // max(1, rows)), dim=dim)


def _probabilities(logits_BTV: Tensor) -> Tensor:
    return torch.softmax(logits_BTV, dim=-1, dtype=torch.promote_types(logits_BTV.dtype, torch.float32))


class _Entropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_BTV: Tensor) -> Tensor:
        chunks = _chunks(logits_BTV, math.prod(logits_BTV.shape[:-2]), dim=-2)
        entropies = [torch.special.entr(_probabilities(chunk_BTV)).sum(dim=-1) for chunk_BTV in chunks]
        entropy_BT = torch.cat(entropies, dim=-1)
        ctx.save_for_backward(logits_BTV, entropy_BT)
        return entropy_BT

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """The derivative by the logit of word v is -p_v (log p_v + entropy)."""
        logits_BTV, entropy_BT = ctx.saved_tensors
        out_BTV = torch.empty_like(logits_BTV)
        rows = math.prod(logits_BTV.shape[:-2])
        per_word = (_chunks(whole, rows, dim=-2) for whole in (logits_BTV, out_BTV))
        per_token = (_chunks(whole.unsqueeze(-1), rows, dim=-2) for whole in (entropy_BT, grads[0]))
        for logits, out, entropy, grad in zip(*per_word, *per_token, strict=True):
            probabilities = _probabilities(logits)
            slope = torch.special.entr(probabilities) - probabilities * entropy
            out.copy_(torch.where(grad == 0, 0.0, slope * grad))
        return out_BTV
