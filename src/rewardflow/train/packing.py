"""Chooses which rows go through the model together, and turns them into tensors.

Always true: the split depends on the lengths of the rows alone; the number of rows times the longest of them stays
within the budget, unless one row alone exceeds it. Rows are padded on the right, where causal attention cannot see, so
valid tokens need no attention mask and have positions 0 to n - 1.

Shapes: B rows, L tokens of the longest, T sampled tokens of the longest response, N sampled tokens of all rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rewardflow.errors import InvalidInput
from rewardflow.types import Rollout


@dataclass(frozen=True, slots=True)
class TokenRow:
    """The tokens of one rollout, and the positions of those that the policy sampled."""

    token_ids: Sequence[int]
    sampled: Sequence[int]

    @classmethod
    def of(cls, rollout: Rollout) -> TokenRow:
        token_ids, mask = rollout.token_ids, rollout.response_mask
        if token_ids is None or mask is None or len(token_ids) != len(mask):
            sizes = [None if column is None else len(column) for column in (token_ids, mask)]
            raise InvalidInput(
                "a rollout to train on needs token_ids and response_mask of the same length, "
                f"got lengths {sizes[0]} and {sizes[1]} in {rollout_name(rollout)}"
            )
        sampled = list(itertools.compress(range(len(mask)), mask))
        if sampled and sampled[0] == 0:
            raise InvalidInput(
                "the first token of a rollout cannot be sampled, because nothing comes before it to sample it from, "
                f"got response_mask[0]={mask[0]} in {rollout_name(rollout)}"
            )
        return cls(token_ids, sampled)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


# Computes what any row does and weighs nothing: ranks run it when others have more passes to make.
IDLE_ROW = TokenRow(token_ids=(0, 0), sampled=(1,))


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """Rows as one forward pass takes them. `row_N` and `position_N` locate each sampled token, row by row."""

    input_ids_BL: Tensor
    row_N: Tensor
    position_N: Tensor
    mask_BT: Tensor  # True for the sampled tokens of each row, moved together to the left

    @property
    def token_ids_N(self) -> Tensor:
        return self.input_ids_BL[self.row_N, self.position_N]

    def by_row(self, values_N: Tensor) -> Tensor:
        """Values of the sampled tokens as [B, T], 0 where a row has no more of them."""
        padded_BT = torch.zeros(self.mask_BT.shape, dtype=values_N.dtype, device=values_N.device)
        return padded_BT.masked_scatter(self.mask_BT, values_N)


def split_passes(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Returns the rows of each pass, by index: longest first, so that rows of one pass are about as long."""
    passes: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        if passes and lengths[passes[-1][0]] * (len(passes[-1]) + 1) <= token_budget:
            passes[-1].append(index)
        else:
            passes.append([index])
    return passes


def pack(rows: Sequence[TokenRow], device: torch.device) -> PackedRows:
    is_token_BL = left_mask(torch.tensor([row.num_tokens for row in rows]))
    # One tensor of all tokens: a tensor for each row would take longer than what the rows then go through.
    token_ids = torch.tensor(list(itertools.chain.from_iterable(row.token_ids for row in rows)), dtype=torch.long)
    counts_B = torch.tensor([len(row.sampled) for row in rows])
    return PackedRows(
        input_ids_BL=torch.zeros(is_token_BL.shape, dtype=torch.long)
        .masked_scatter_(is_token_BL, token_ids)
        .to(device),
        row_N=torch.repeat_interleave(torch.arange(len(rows)), counts_B).to(device),
        position_N=torch.tensor([position for row in rows for position in row.sampled], dtype=torch.long).to(device),
        mask_BT=left_mask(counts_B).to(device),
    )


def left_mask(counts_B: Tensor) -> Tensor:
    """Returns [B, T], True for the first `count` entries of each row."""
    longest = int(counts_B.max()) if len(counts_B) else 0
    return torch.arange(longest) < counts_B[:, None]


def rollout_name(rollout: Rollout) -> str:
    """Returns the rollout's name in error messages."""
    return f"rollout {rollout.index} of group {rollout.group_id!r} in step {rollout.step}"
