"""Chooses which rows go through the model together, and turns them into tensors.

Always true: the split depends on the lengths of the rows alone; the tokens of a pass, with padding, stay within the
budget, unless one row alone exceeds it. Rows are padded on the right, where causal attention cannot see, so valid
tokens need no attention mask and have positions 0 to n - 1. Without padding, rows follow one another in one long row,
and positions start at 0 in each of them, by which transformers keeps attention within a row.

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
    position_ids_BL: Tensor | None = None  # of rows that follow one another; None: rows are padded

    @property
    def token_ids_N(self) -> Tensor:
        return self.input_ids_BL[self.row_N, self.position_N]

    def inputs(self, *, drops_last: bool = False) -> dict[str, Tensor]:
        """Returns what the model is called with; nothing is predicted from the last token."""
        end = -1 if drops_last else None
        inputs = {"input_ids": self.input_ids_BL[:, :end]}
        if self.position_ids_BL is not None:
            inputs["position_ids"] = self.position_ids_BL[:, :end]
        return inputs

    def by_row(self, values_N: Tensor) -> Tensor:
        """Values of the sampled tokens as [B, T], 0 where a row has no more of them."""
        padded_BT = torch.zeros(self.mask_BT.shape, dtype=values_N.dtype, device=values_N.device)
        return padded_BT.masked_scatter(self.mask_BT, values_N)


def split_passes(lengths: Sequence[int], token_budget: int, *, padding_free: bool = False) -> list[list[int]]:
    """Returns the rows of each pass, by index: longest first, so that rows of one pass are about as long."""
    passes: list[list[int]] = []
    num_tokens = 0  # of the last pass
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        added = lengths[index] if padding_free or not passes else lengths[passes[-1][0]]
        if passes and num_tokens + added <= token_budget:
            passes[-1].append(index)
            num_tokens += added
        else:
            passes.append([index])
            num_tokens = lengths[index]
    return passes


def pack(rows: Sequence[TokenRow], device: torch.device, *, padding_free: bool = False) -> PackedRows:
    """Makes one row of tensors for each row, padded to the longest, or one long row without padding."""
    return _joined(rows, device) if padding_free else _padded(rows, device)


def _joined(rows: Sequence[TokenRow], device: torch.device) -> PackedRows:
    counts = [row.num_tokens for row in rows]
    starts = [0, *itertools.accumulate(counts)]
    token_ids = list(itertools.chain.from_iterable(row.token_ids for row in rows))
    sampled = [start + position for row, start in zip(rows, starts, strict=False) for position in row.sampled]
    return PackedRows(
        input_ids_BL=torch.tensor([token_ids], dtype=torch.long).to(device),
        row_N=torch.zeros(len(sampled), dtype=torch.long).to(device),
        position_N=torch.tensor(sampled, dtype=torch.long).to(device),
        mask_BT=left_mask(torch.tensor([len(row.sampled) for row in rows])).to(device),
        position_ids_BL=torch.cat([torch.arange(count) for count in counts])[None].to(device),
    )


def _padded(rows: Sequence[TokenRow], device: torch.device) -> PackedRows:
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
