"""Log-probs of the tokens that were sampled, under the distribution they were sampled from.

Always true: logits are divided by the sampling temperature, as the engine does; they are computed for sampled tokens
and nothing else; the softmax is taken in float32, a bounded number of logits at a time, whatever the model computes in.

Shapes: B rows, L tokens of the longest, N sampled tokens of all rows, D hidden, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rewardflow.algo.token_softmax import Entropy, token_softmax
from rewardflow.errors import InvalidInput
from rewardflow.train.packing import PackedRows


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Scores of every sampled token, row by row."""

    log_probs_N: Tensor
    entropy_N: Tensor | None
    hidden_ND: Tensor | None = None  # what the model predicted them from


def token_log_probs(
    model: nn.Module,
    packed: PackedRows,
    *,
    temperature: float,
    entropy: Entropy = "none",
    autocast: torch.dtype | None = None,
    logits_at_a_time: int | None = None,
) -> TokenScores:
    """Makes one forward pass."""
    logits_NV, hidden_ND = _logits(model, packed, autocast)
    log_probs_N, entropy_N = token_softmax(
        logits_NV,
        packed.token_ids_N,
        temperature=temperature,
        entropy=entropy,
        logits_at_a_time=logits_at_a_time,
    )
    return TokenScores(log_probs_N, entropy_N, hidden_ND)


def _logits(model: nn.Module, packed: PackedRows, autocast: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """Returns logits of the sampled tokens alone, and the head's input, at the position before each token."""
    kept: list[Tensor] = []

    def keep_sampled(_head: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor]:
        hidden_BLD: Tensor = args[0]
        kept.append(hidden_BLD[packed.row_N, packed.position_N - 1])
        return (kept[-1],)

    # transformers' `logits_to_keep` takes one set of positions for all rows, except in its latest versions; prompts of
    # different lengths would compute most logits in vain. The model's own forward stays in charge of the rest.
    head: nn.Module = model.get_output_embeddings()  # type: ignore[operator]  # of transformers' PreTrainedModel
    device = packed.input_ids_BL.device.type
    with head.register_forward_pre_hook(keep_sampled), torch.autocast(device, autocast, autocast is not None):
        # Nothing is predicted from the last token of the longest row.
        logits_NV: Tensor = model(input_ids=packed.input_ids_BL[:, :-1], use_cache=False).logits
    if logits_NV.shape[:-1] != packed.row_N.shape:
        raise InvalidInput(
            "the model must compute its logits by calling what get_output_embeddings() returns, "
            f"got logits of shape {tuple(logits_NV.shape)} for {len(packed.row_N)} tokens"
        )
    return logits_NV, kept[-1]
