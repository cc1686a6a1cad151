"""Computes log-probs and entropies of tokens from hidden states and the head's weights, without all logits at once.

Always true: at most `KEPT_LOGITS` logits exist at a time. Where all of them are no more than that, they are computed
once; otherwise they are computed for some of the words at a time, and once more in the backward pass. The gradient of
each word's weights is one product over all tokens, so no gradient is rounded more often than with all logits at once.

The words of a head may be spread over ranks. Then each rank computes the logits of its own words, and the ranks
exchange a few numbers for each token, never logits: all have the same log-probs, entropies and gradient of the hidden
states.

Shapes: N tokens, V words, W of them at a time, D hidden.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from rewardflow.algo.token_softmax import LOWEST, Entropy, gradient_without_token, scaled, token_softmax

KEPT_LOGITS = 1 << 26  # 256 MiB in float32
LOGITS_IN_BLOCK = 1 << 25


@dataclass(frozen=True, slots=True)
class OwnWords:
    """The words of a rank's rows of the head: `count` from `first` on. Rows after them are padding."""

    first: int
    count: int
    group: dist.ProcessGroup  # the ranks that have all words together


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
    own: OwnWords | None = None,
) -> tuple[Tensor, Tensor | None]:
    """As `token_softmax`, for the logits of a linear head. `compute` is the dtype of its products, as with autocast.

    With `own`, the head is spread over ranks, which call this together; their logits are not kept, however few.
    """
    num_tokens, num_words = len(hidden_ND), len(weight_VD)
    dtype = compute or hidden_ND.dtype
    if own is None and num_tokens * num_words <= kept_logits:
        logits_NV = F.linear(hidden_ND.to(dtype), weight_VD.to(dtype), None if bias_V is None else bias_V.to(dtype))
        return token_softmax(logits_NV, token_ids_N, temperature=temperature, entropy=entropy)
    words_at_a_time = max(1, min(kept_logits, LOGITS_IN_BLOCK) // max(1, num_tokens))
    log_probs_N, entropy_N = _Blocks.apply(  # type: ignore[no-untyped-call]
        hidden_ND.to(dtype), weight_VD, bias_V, token_ids_N, temperature, entropy, words_at_a_time, own
    )
    return log_probs_N, None if entropy == "none" else entropy_N


@dataclass(slots=True)
class _Sums:
    """What is known of each token's distribution after some of the words: sums relative to the largest logit so far."""

    largest_N: Tensor
    total_N: Tensor  # of exp(logit - largest)
    weighted_N: Tensor  # of exp(logit - largest) (logit - largest); 0 where no entropy is needed
    chosen_N: Tensor  # the sampled token's logit; 0 until its word was there

    @classmethod
    def start(cls, num_tokens: int, dtype: torch.dtype, device: torch.device) -> _Sums:
        largest_N = torch.full((num_tokens,), -torch.inf, dtype=dtype, device=device)
        return cls(largest_N, *torch.zeros(3, num_tokens, dtype=dtype, device=device))

    def add(self, logits_NW: Tensor, entropy: Entropy) -> None:
        """Adds a block of words; overwrites its logits."""
        self._rescale(torch.maximum(self.largest_N, logits_NW.amax(-1)), entropy)
        below_NW = logits_NW.sub_(self.largest_N[:, None])
        weights_NW = below_NW.exp()
        self.total_N = self.total_N + weights_NW.sum(-1)
        if entropy != "none":
            self.weighted_N = self.weighted_N + weights_NW.mul_(below_NW.clamp_(min=LOWEST)).sum(-1)

    def join(self, group: dist.ProcessGroup, entropy: Entropy) -> None:
        """Adds the words of all ranks."""
        largest_N = self.largest_N.clone()
        dist.all_reduce(largest_N, dist.ReduceOp.MAX, group)
        self._rescale(largest_N, entropy)
        sums_3N = torch.stack([self.total_N, self.weighted_N, self.chosen_N])
        dist.all_reduce(sums_3N, group=group)
        self.total_N, self.weighted_N, self.chosen_N = sums_3N

    def _rescale(self, largest_N: Tensor, entropy: Entropy) -> None:
        drop_N = (self.largest_N - largest_N).clamp_(min=LOWEST)
        shrinks_by_N = drop_N.exp()
        if entropy != "none":
            self.weighted_N = shrinks_by_N * (self.weighted_N + drop_N * self.total_N)
        self.total_N = shrinks_by_N * self.total_N
        self.largest_N = largest_N


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
        own: OwnWords | None,
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(hidden_ND.dtype, torch.float32)
        num_words = len(weight_VD) if own is None else own.count
        place_N = token_ids_N if own is None else token_ids_N - own.first
        sums = _Sums.start(len(hidden_ND), dtype, hidden_ND.device)
        for block in _blocks(num_words, words_at_a_time):
            logits_NW = scaled(_logits(hidden_ND, weight_VD, bias_V, block), temperature, dtype)
            is_here_N, within_N = _within(place_N, block)
            found_N = logits_NW.gather(-1, within_N[:, None]).squeeze(-1)
            sums.chosen_N = torch.where(is_here_N, found_N, sums.chosen_N)
            sums.add(logits_NW, entropy)
        if own is not None:
            sums.join(own.group, entropy)
        log_total_N = sums.total_N.log()
        entropy_N = log_total_N - sums.weighted_N / sums.total_N
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, place_N, entropy_N, sums.largest_N, sums.total_N)
        ctx.temperature, ctx.trains_entropy, ctx.own = temperature, entropy == "trained", own
        ctx.num_words, ctx.words_at_a_time = num_words, words_at_a_time
        if not ctx.trains_entropy:
            ctx.mark_non_differentiable(entropy_N)
        return sums.chosen_N - sums.largest_N - log_total_N, entropy_N

    @staticmethod
    def backward(
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None, None, None, None]:
        hidden_ND, weight_VD, bias_V, place_N, entropy_N, largest_N, total_N = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        grad_N1, from_entropy_N1 = (grad[:, None] / ctx.temperature for grad in grads)
        of_hidden_ND = torch.zeros(hidden_ND.shape, dtype=total_N.dtype, device=hidden_ND.device)
        of_weight_VD = torch.empty_like(weight_VD) if wants_weight else None
        of_bias_V = torch.empty_like(bias_V) if wants_bias else None
        for of_words in (of_weight_VD, of_bias_V):
            if of_words is not None:
                of_words[ctx.num_words :] = 0  # padding
        for block in _blocks(ctx.num_words, ctx.words_at_a_time):
            logits_NW = scaled(_logits(hidden_ND, weight_VD, bias_V, block), ctx.temperature, total_N.dtype)
            grad_NW = gradient_without_token(
                logits_NW.sub_(largest_N[:, None]),
                total_N[:, None],
                entropy_N[:, None] if ctx.trains_entropy else None,
                grad_N1,
                from_entropy_N1,
            )
            is_here_N, within_N = _within(place_N, block)
            grad_NW.scatter_add_(-1, within_N[:, None], grad_N1 * is_here_N[:, None])
            if of_bias_V is not None:
                of_bias_V[block] = grad_NW.sum(0)
            grad_NW = grad_NW.to(hidden_ND.dtype)
            if of_weight_VD is not None:
                of_weight_VD[block] = grad_NW.T @ hidden_ND
            if wants_hidden:
                of_hidden_ND += grad_NW @ weight_VD[block].to(hidden_ND.dtype)
        if wants_hidden and ctx.own is not None:
            dist.all_reduce(of_hidden_ND, group=ctx.own.group)
        return of_hidden_ND.to(hidden_ND.dtype) if wants_hidden else None, of_weight_VD, of_bias_V, *(None,) * 5


def _blocks(num_words: int, words_at_a_time: int) -> Iterator[slice]:
    for first in range(0, num_words, words_at_a_time):
        yield slice(first, min(first + words_at_a_time, num_words))


def _logits(hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, block: slice) -> Tensor:
    dtype = hidden_ND.dtype
    return F.linear(hidden_ND, weight_VD[block].to(dtype), None if bias_V is None else bias_V[block].to(dtype))


def _within(place_N: Tensor, block: slice) -> tuple[Tensor, Tensor]:
    """Returns whether each token is a word of the block, and its place there."""
    within_N = place_N - block.start
    is_here_N = (within_N >= 0) & (place_N < block.stop)
    return is_here_N, torch.where(is_here_N, within_N, 0)
