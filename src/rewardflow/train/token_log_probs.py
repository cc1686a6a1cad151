"""Log-probs of the tokens that were sampled, under the distribution they were sampled from.

Always true: logits are divided by the sampling temperature, as the engine does; they are computed for sampled tokens
and nothing else, a bounded number at a time; the softmax is taken in float32, whatever the model computes in.

Shapes: B rows, L tokens of the longest, N sampled tokens of all rows, D hidden, V vocabulary.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from rewardflow.algo.head_softmax import KEPT_LOGITS, head_softmax
from rewardflow.algo.token_softmax import Entropy, token_softmax
from rewardflow.errors import InvalidInput
from rewardflow.train.packing import PackedRows

# Models that scale or cap what their head returns, as some of transformers do: they need all logits at once.
_CHANGE_LOGITS: weakref.WeakSet[nn.Module] = weakref.WeakSet()


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
    kept_logits: int = KEPT_LOGITS,
) -> TokenScores:
    """Makes one forward pass; a second one the first time that a model turns out to change its logits."""
    head = _head(model)
    if _is_linear(head) and model not in _CHANGE_LOGITS:
        scores = _in_head(model, head, packed, temperature, entropy, autocast, kept_logits)
        if scores is not None:
            return scores
        _CHANGE_LOGITS.add(model)
    logits_NV, hidden_ND = _logits(model, head, packed, autocast)
    log_probs_N, entropy_N = token_softmax(logits_NV, packed.token_ids_N, temperature=temperature, entropy=entropy)
    return TokenScores(log_probs_N, entropy_N, hidden_ND)


def hidden_states(model: nn.Module, packed: PackedRows, *, autocast: torch.dtype | None = None) -> Tensor:
    """Returns what the model would predict each sampled token from, without logits."""
    kept: list[Tensor] = []

    def keep(hidden_BLD: Tensor) -> Tensor:
        kept.append(_sampled(hidden_BLD, packed))
        return kept[-1]

    with computing(_head(model), keep):
        _run(model, packed, autocast)
    return kept[-1]


def _in_head(
    model: nn.Module,
    head: nn.Linear,
    packed: PackedRows,
    temperature: float,
    entropy: Entropy,
    autocast: torch.dtype | None,
    kept_logits: int,
) -> TokenScores | None:
    """Scores within the call of the head, where its weights are whole; None if the model changes what that returns."""
    kept: list[tuple[Tensor, Tensor]] = []

    def score(hidden_BLD: Tensor) -> Tensor:
        hidden_ND = _sampled(hidden_BLD, packed)
        log_probs_N, entropy_N = head_softmax(
            hidden_ND,
            head.weight,
            head.bias,
            packed.token_ids_N,
            temperature=temperature,
            entropy=entropy,
            compute=autocast,
            kept_logits=kept_logits,
        )
        # One tensor: whoever watches the head's output, as FSDP2 does, must see every gradient that comes back.
        columns = (log_probs_N,) if entropy_N is None else (log_probs_N, entropy_N)
        kept.append((torch.stack(columns), hidden_ND))
        return kept[-1][0]

    with computing(head, score):
        returned = _run(model, packed, autocast)
    if not kept or returned is not kept[-1][0]:
        return None
    scores_SN, hidden_ND = kept[-1]
    if entropy == "none":
        return TokenScores(scores_SN[0], None, hidden_ND)
    return TokenScores(scores_SN[0], scores_SN[1] if entropy == "trained" else scores_SN[1].detach(), hidden_ND)


def _logits(
    model: nn.Module, head: nn.Module, packed: PackedRows, autocast: torch.dtype | None
) -> tuple[Tensor, Tensor]:
    """Returns logits of the sampled tokens alone, and the head's input, at the position before each token."""
    kept: list[Tensor] = []

    def keep_sampled(_head: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor]:
        kept.append(_sampled(args[0], packed))
        return (kept[-1],)

    # transformers' `logits_to_keep` takes one set of positions for all rows, except in its latest versions; prompts of
    # different lengths would compute most logits in vain. The model's own forward stays in charge of the rest.
    with head.register_forward_pre_hook(keep_sampled):
        logits_NV = _run(model, packed, autocast)
    if logits_NV.shape[:-1] != packed.row_N.shape:
        raise InvalidInput(
            "the model must compute its logits by calling what get_output_embeddings() returns, "
            f"got logits of shape {tuple(logits_NV.shape)} for {len(packed.row_N)} tokens"
        )
    return logits_NV, kept[-1]


def _run(model: nn.Module, packed: PackedRows, autocast: torch.dtype | None) -> Tensor:
    with torch.autocast(packed.input_ids_BL.device.type, autocast, autocast is not None):
        returned: Tensor = model(**packed.inputs(drops_last=True), use_cache=False).logits
        return returned


def _sampled(hidden_BLD: Tensor, packed: PackedRows) -> Tensor:
    return hidden_BLD[packed.row_N, packed.position_N - 1]


def _head(model: nn.Module) -> nn.Module:
    head: nn.Module = model.get_output_embeddings()  # type: ignore[operator]  # of transformers' PreTrainedModel
    return head


def _is_linear(head: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether calling the head multiplies by its weights and does nothing else; FSDP2 changes its class, not that."""
    return isinstance(head, nn.Linear) and type(head).forward is nn.Linear.forward and "forward" not in vars(head)


@contextmanager
def computing(head: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Lets the head compute something else; its hooks stay, among them FSDP2's, which gather its weights."""
    before = vars(head).get("forward")
    vars(head)["forward"] = forward
    try:
        yield
    finally:
        del vars(head)["forward"]
        if before is not None:
            vars(head)["forward"] = before
