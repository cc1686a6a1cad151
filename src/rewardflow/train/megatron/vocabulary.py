"""Lets the head of a Megatron model return scores of sampled tokens in place of logits.

Always true: no rank holds the logits of all tokens, nor sees another's; all ranks of the tensor axis have the same
scores, in float32 whatever the model computes in; words that pad the vocabulary have no probability and no gradient.

Shapes: N tokens, S kinds of scores, W words of this rank, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rewardflow.algo.head_softmax import KEPT_LOGITS, OwnWords, head_softmax
from rewardflow.algo.token_softmax import Entropy
from rewardflow.train.megatron.layout import Axis
from rewardflow.train.megatron.weight_names import part_of
from rewardflow.train.token_log_probs import TokenScores

# As the head of Megatron is called: hidden states, the weights if they are another layer's, whether to gather.
# Returns its output and a bias.
HeadForward = Callable[..., tuple[Tensor, None]]


def own_words(vocabulary: int, axis: Axis) -> OwnWords | None:
    """Returns the words of this rank of the tensor axis; None if it has all of them."""
    if axis.size == 1:
        return None
    return OwnWords(*part_of(vocabulary, axis.rank, axis.size), axis.group)


def scoring_head(
    head: Any,
    select: Callable[[Tensor], Tensor],
    token_ids_N: Tensor,
    own: OwnWords | None,
    *,
    temperature: float,
    entropy: Entropy,
    kept_logits: int = KEPT_LOGITS,
) -> HeadForward:
    """Returns what `head` computes instead of logits. `select` finds the hidden states [N, D] that predict the tokens.

    Megatron exchanges the first two dimensions of what its head returns, so the scores are [N, S] here.
    """

    def forward(hidden: Tensor, weight: Tensor | None = None, **_how: Any) -> tuple[Tensor, None]:
        log_probs_N, entropy_N = head_softmax(
            select(hidden),
            head.weight if weight is None else weight,
            None,
            token_ids_N,
            temperature=temperature,
            entropy=entropy,
            kept_logits=kept_logits,
            own=own,
        )
        columns = (log_probs_N,) if entropy_N is None else (log_probs_N, entropy_N)
        return torch.stack(columns, dim=-1), None

    return forward


def scores_of(returned_SN: Tensor, entropy: Entropy) -> TokenScores:
    """Reads what the model returned, whose head was a `scoring_head`."""
    if entropy == "none":
        return TokenScores(returned_SN[0], None)
    return TokenScores(returned_SN[0], returned_SN[1] if entropy == "trained" else returned_SN[1].detach())
