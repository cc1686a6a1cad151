"""Draws one token for each row of logits, and returns its log-prob.

Always true: a rollout's random numbers are a function of seed, group number, index and position, so its tokens do not
depend on the other rows of the batch or on when it started; a token that top-k or top-p excludes is never drawn;
log-probs are those of the whole distribution at the given temperature, which is the one that training computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from rewardflow.flow.records import Sampling

# splitmix64: consecutive multiples of this odd number, mixed, pass every statistical test known for 64-bit generators.
_STRIDE = 0x9E3779B97F4A7C15 - 2**64
_FIRST_FACTOR = 0xBF58476D1CE4E5B9 - 2**64
_SECOND_FACTOR = 0x94D049BB133111EB - 2**64

_BLOCK = 512


def random_streams(seed: int, numbers: Sequence[int], indices: Sequence[int]) -> Tensor:
    """Returns, for each rollout (group number, index in the group), the state that its random numbers start from."""
    start = torch.tensor((seed + 2**63) % 2**64 - 2**63, dtype=torch.int64)
    by_group = _mix(_mix(start) ^ torch.tensor(numbers, dtype=torch.int64))
    return _mix(by_group ^ torch.tensor(indices, dtype=torch.int64))


def uniforms(streams: Tensor, positions: Tensor) -> Tensor:
    """Returns the number of each stream at its position: float64 in [0, 1)."""
    bits = _mix(streams + (positions + 1) * _STRIDE)
    return _shift(bits, 11).double() * 2.0**-53


@dataclass(frozen=True, slots=True)
class Drawn:
    """One entry a row. A log-prob is NaN where the logits were not finite."""

    tokens: Tensor  # int64
    log_probs: Tensor  # float32


def draw(logits: Tensor, uniform: Tensor, sampling: Sampling, is_greedy: Tensor | None = None) -> Drawn:
    """Inverts the cumulative distribution of each row of `logits` at its number in `uniform`.

    Rows that are greedy take the likeliest token instead, of several such the first.
    """
    scaled = logits.float()
    if sampling.temperature != 1.0:
        scaled = scaled / sampling.temperature
    scaled = scaled - scaled.amax(-1, keepdim=True)
    weights = scaled.exp()
    log_total = weights.sum(-1, keepdim=True, dtype=torch.float64).log()
    tokens = _invert(restrict(weights, sampling), uniform[:, None])
    if is_greedy is not None:
        tokens = torch.where(is_greedy[:, None], scaled.argmax(-1, keepdim=True), tokens)
    log_probs = scaled.gather(-1, tokens) - log_total
    return Drawn(tokens.squeeze(-1), log_probs.squeeze(-1).float())


def restrict(weights: Tensor, sampling: Sampling) -> Tensor:
    """Sets to 0 what top-k and top-p exclude; with both, top-p looks at what top-k left. Ties at the limit all stay."""
    if 0 < sampling.top_k < weights.shape[-1]:
        least = weights.topk(sampling.top_k, -1).values[:, -1:]
        weights = weights.where(weights >= least, 0.0)
    if sampling.top_p < 1.0:
        ordered = weights.sort(-1, descending=True).values
        sums = ordered.cumsum(-1, dtype=torch.float64)
        is_within = sums - ordered < sampling.top_p * sums[:, -1:]  # of the mass before it
        least = ordered.gather(-1, is_within.sum(-1, keepdim=True) - 1)
        weights = weights.where(weights >= least, 0.0)
    return weights


def _invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """Returns the index at which each row's cumulative sum passes that share of its total, in float64.

    Sums a large vocabulary in blocks, and looks at single tokens only in the block that is hit: a cumulative sum of all
    tokens in float64 would move several times the memory of the logits themselves.
    """
    num_rows, width = weights.shape
    if width <= 2 * _BLOCK:
        return _pass(weights, uniform)
    blocks = F.pad(weights, (0, -width % _BLOCK)).view(num_rows, -1, _BLOCK)
    sums = blocks.sum(-1, dtype=torch.float64)
    block = _pass(sums, uniform)
    before = (sums.cumsum(-1) - sums).gather(-1, block)
    within = (uniform * sums.sum(-1, keepdim=True) - before) / sums.gather(-1, block)
    hit = blocks.gather(1, block[:, :, None].expand(-1, 1, _BLOCK)).squeeze(1)
    return block * _BLOCK + _pass(hit, within.clamp(0.0, 1.0))


def _pass(weights: Tensor, share: Tensor) -> Tensor:
    """Returns the first index whose cumulative sum is above the share; below the total, so that it has a weight."""
    sums = weights.cumsum(-1, dtype=torch.float64)
    total = sums[:, -1:]
    target = torch.minimum(share * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(sums, target, right=True).clamp_(max=weights.shape[-1] - 1)


def _mix(bits: Tensor) -> Tensor:
    """Applies splitmix64's finaliser; products wrap, as they must."""
    bits = (bits ^ _shift(bits, 30)) * _FIRST_FACTOR
    bits = (bits ^ _shift(bits, 27)) * _SECOND_FACTOR
    return bits ^ _shift(bits, 31)


def _shift(bits: Tensor, count: int) -> Tensor:
    """Shifts to the right and fills with zeros, which torch's own shift of signed numbers does not do."""
    mask: int = 2 ** (64 - count) - 1
    return (bits >> count) & mask
