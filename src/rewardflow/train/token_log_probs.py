"""Log-probs of the tokens that were sampled, under the distribution they were sampled from.

Always true: logits are divided by the sampling temperature, as the engine does; they are computed for sampled tokens
and nothing else; the softmax is taken in float32, a bounded number of logits at a time, whatever the model computes in.

Shapes: B rows, L tokens of the longest, N sampled tokens of all rows, C of them at a time, D hidden, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rewardflow.algo.entropy import token_entropy
from rewardflow.errors import InvalidInput
from rewardflow.train.packing import PackedRows

Entropy = Literal["none", "measured", "trained"]  # measured: without a gradient

LOGITS_AT_A_TIME = 1 << 25  # 128 MiB in float32


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Of every sampled token, row by row."""

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
    logits_at_a_time: int = LOGITS_AT_A_TIME,
) -> TokenScores:
    """One forward pass."""
    logits_NV, hidden_ND = _logits(model, packed, autocast)
    chunk = max(1, logits_at_a_time // logits_NV.shape[-1])
    pieces = [
        _score(logits_CV, token_ids_C, temperature, entropy)
        for logits_CV, token_ids_C in zip(
            torch.split(logits_NV, chunk), torch.split(packed.token_ids_N, chunk), strict=True
        )
    ]
    entropies = [piece.entropy_N for piece in pieces if piece.entropy_N is not None]
    log_probs_N = torch.cat([piece.log_probs_N for piece in pieces])
    return TokenScores(log_probs_N, torch.cat(entropies) if entropies else None, hidden_ND)


def _logits(model: nn.Module, packed: PackedRows, autocast: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """Logits of the sampled tokens alone, and the head's input: each is predicted at the position before its own."""
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
        logits_NV: Tensor = model(input_ids=packed.input_ids_BL, use_cache=False).logits
    if logits_NV.shape[:-1] != packed.row_N.shape:
        raise InvalidInput(
            "the model must compute its logits by calling what get_output_embeddings() returns, "
            f"got logits of shape {tuple(logits_NV.shape)} for {len(packed.row_N)} tokens"
        )
    return logits_NV, kept[-1]


def _score(logits_CV: Tensor, token_ids_C: Tensor, temperature: float, entropy: Entropy) -> TokenScores:
    # Recomputed in the backward pass, because the float32 copies weigh several times what the logits do.
    log_probs_C, entropy_C = checkpoint(
        _softmax_terms,
        logits_CV,
        token_ids_C,
        temperature,
        entropy,
        use_reentrant=False,
        preserve_rng_state=False,
    )
    return TokenScores(log_probs_C, entropy_C)


def _softmax_terms(
    logits_CV: Tensor, token_ids_C: Tensor, temperature: float, entropy: Entropy
) -> tuple[Tensor, Tensor | None]:
    scaled_CV = logits_CV.float()
    if temperature != 1.0:
        scaled_CV = scaled_CV / temperature
    normalizer_C = scaled_CV.logsumexp(-1)
    log_probs_C = scaled_CV.gather(-1, token_ids_C[:, None]).squeeze(-1) - normalizer_C
    if entropy == "none":
        return log_probs_C, None
    return log_probs_C, token_entropy(scaled_CV if entropy == "trained" else scaled_CV.detach())
