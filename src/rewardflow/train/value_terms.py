"""The critic's part of the loss: the numerator of one pass, and metrics of the values.

Always true: the numerator is weighted as the policy's, so one denominator divides both; sums are float64 and add up
over passes and ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rewardflow.algo import aggregation
from rewardflow.algo.estimator import TokenTargets
from rewardflow.algo.value_loss import value_loss
from rewardflow.errors import InvalidInput
from rewardflow.flow.records import Sample
from rewardflow.settings.run_settings import Aggregation
from rewardflow.train.loss_terms import TrainingRow, column_of
from rewardflow.train.packing import IDLE_ROW, PackedRows, TokenRow, rollout_name

COLUMNS = ("returns", "values")
VARIANCE_FLOOR = 1e-5  # added to the variance of returns before it divides
_SUMS = ("loss", "tokens", "clipped", "values", "returns", "returns_squared", "errors", "errors_squared")
NUM_SUMS = len(_SUMS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueNumerator:
    """`value` is the scalar to differentiate; `sums_S` has no gradient."""

    value: Tensor
    sums_S: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueTerms:
    aggregation: Aggregation
    clip: float | None

    def training_row(self, sample: Sample, row: TokenRow) -> TrainingRow:
        targets = sample.advantage
        if not isinstance(targets, TokenTargets) or sample.precomputed.values is None:
            raise InvalidInput(
                "every sample that a critic learns from needs its returns and its values before the update, got "
                f"{type(targets).__name__} and {type(sample.precomputed.values).__name__} for "
                f"{rollout_name(sample.rollout)}"
            )
        columns = {"returns": targets.returns_T, "values": sample.precomputed.values}
        return TrainingRow(row=row, columns={name: column_of(name, columns[name], sample, row) for name in COLUMNS})

    def idle_row(self) -> TrainingRow:
        columns = {name: torch.zeros(len(IDLE_ROW.sampled)) for name in COLUMNS}
        return TrainingRow(row=IDLE_ROW, columns=columns, has_weight=False)

    def numerator(self, rows: Sequence[TrainingRow], packed: PackedRows, values_N: Tensor) -> ValueNumerator:
        """Of one forward pass."""
        device = packed.mask_BT.device
        mask_BT = packed.mask_BT & torch.tensor([row.has_weight for row in rows]).to(device)[:, None]
        returns_BT, old_BT = (
            packed.by_row(torch.cat([row.columns[name] for row in rows]).to(device)) for name in COLUMNS
        )
        loss = value_loss(packed.by_row(values_N), old_BT, returns_BT, mask_BT, self.clip)
        weights_BT = aggregation.token_weights(self.aggregation, mask_BT)
        total = aggregation.numerator(loss.loss_BT, weights_BT)
        # Not by picking the masked entries: the host would wait for the device, to learn how many there are.
        returns_BT, old_BT = (torch.where(mask_BT, one_BT, 0.0).double() for one_BT in (returns_BT, old_BT))
        errors_BT = returns_BT - old_BT
        counted = (mask_BT, loss.clipped_BT, old_BT, returns_BT, returns_BT.square(), errors_BT, errors_BT.square())
        sums = [total.detach().double(), *(values.sum(dtype=torch.float64) for values in counted)]
        return ValueNumerator(value=total, sums_S=torch.stack(sums))


def value_metrics(sums_S: Tensor, denominator: float) -> dict[str, float]:
    """Divides the loss as the policy's, the rest by tokens. Values are those before the step's first update."""
    sums = dict(zip(_SUMS, sums_S.tolist(), strict=True))
    num_tokens = sums["tokens"]
    if not num_tokens:
        return {}
    spread = _variance(sums["returns"], sums["returns_squared"], num_tokens)
    unexplained = _variance(sums["errors"], sums["errors_squared"], num_tokens)
    return {
        "value_loss": sums["loss"] / denominator,
        "value_clipped": sums["clipped"] / num_tokens,
        "value_mean": sums["values"] / num_tokens,
        "return_mean": sums["returns"] / num_tokens,
        "explained_variance": 1.0 - unexplained / (spread + VARIANCE_FLOOR),
    }


def _variance(total: float, total_squared: float, count: float) -> float:
    return max(0.0, total_squared - total * total / count) / max(1.0, count - 1)
