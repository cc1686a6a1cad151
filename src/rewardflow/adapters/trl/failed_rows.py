"""Takes completions without a verdict out of TRL's loss.

Always true: a completion whose verdict failed has no policy, KL or entropy term and no weight in any denominator; with
fewer than two verdicts a whole group is left out, because one verdict says nothing about the others. TRL alone gives
such completions the advantage 0 and keeps the other terms and the denominators.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

MIN_GROUP = 2
ROW_SCALE = "rewardflow_row_scale"
_MEAN_OVER_ROWS = ("grpo", "sapo", "dr_grpo", "luspo")  # the others divide by tokens, which the mask takes out


def without_failed(rewards_BF: torch.Tensor, own_columns: Sequence[int]) -> torch.Tensor:
    """Returns the rewards with no number for completions of which an own verdict failed.

    TRL takes None for "does not apply" and sums the other rewards; a failure must not make a sum smaller.
    """
    failed_B = torch.isnan(rewards_BF[:, list(own_columns)]).any(dim=1)
    return torch.where(failed_B.unsqueeze(1), torch.nan, rewards_BF)


def rows_to_leave_out(rewards_BF: torch.Tensor, group_size: int) -> torch.Tensor:
    """Returns which completions have no verdict, or are in a group of too few."""
    failed_GN = torch.isnan(rewards_BF).all(dim=1).view(-1, group_size)
    too_few_G = (~failed_GN).sum(dim=1) < MIN_GROUP
    return (failed_GN | too_few_G.unsqueeze(1)).flatten()


def leave_out(
    batch: dict[str, Any],
    rows_B: torch.Tensor,
    *,
    share: float,
    loss_type: str,
    total: Callable[[torch.Tensor], torch.Tensor],
) -> dict[str, Any]:
    """Masks these rows of this process. `share` is the part of all processes' rows that trains; `total` sums over them.

    Where a loss is a mean over rows, the other rows are scaled up to what their mean would be without the masked ones.
    """
    mask_BT = batch["completion_mask"] * (~rows_B).unsqueeze(1).to(batch["completion_mask"].dtype)
    loss_mask_BT = mask_BT * batch["tool_mask"] if "tool_mask" in batch else mask_BT
    batch = batch | {"completion_mask": mask_BT, "num_items_in_batch": total(loss_mask_BT.sum())}
    if loss_type in _MEAN_OVER_ROWS and share > 0:
        scale = torch.tensor(1.0 / share, device=mask_BT.device)
        batch |= {"advantages": batch["advantages"] * scale, ROW_SCALE: scale}
    return batch


@contextlib.contextmanager
def scaled_kl(trainer: Any, batch: dict[str, Any]) -> Iterator[None]:
    """Scales the KL term like the advantages, which carry the scale of the policy term."""
    beta = trainer.beta
    trainer.beta = beta * float(batch.get(ROW_SCALE, 1.0))
    try:
        yield
    finally:
        trainer.beta = beta
