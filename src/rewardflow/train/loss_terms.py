"""From samples to the scalar that is differentiated: the numerator of one forward pass.

Always true: a row carries everything its loss needs, over its own sampled tokens, so nothing can be put on another's;
the numerator is a sum that no denominator has touched, so those of all passes of an update add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rewardflow.algo import aggregation
from rewardflow.algo.kl import kl_to_reference
from rewardflow.algo.losses import policy_loss
from rewardflow.config.tree import AlgorithmSettings
from rewardflow.errors import InvalidInput
from rewardflow.flow.records import Sample
from rewardflow.train.packing import IDLE_ROW, PackedRows, Row, rollout_name
from rewardflow.train.token_log_probs import Entropy, TokenScores


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """A row with what its loss is computed from; each column is float32 and has one entry for each sampled token."""

    row: Row
    columns: Mapping[str, Tensor]
    has_weight: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSums:
    """What one pass adds to the metrics, in float64: terms of the loss, weighted as it is, and sums over tokens."""

    weighted: Mapping[str, Tensor]
    counted: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerator:
    """`value` is what to differentiate; the sums have no gradient."""

    value: Tensor
    sums: PassSums


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerms:
    """The terms of the loss. `uses_old` is False where every update is a step's only one, so that old is present."""

    algorithm: AlgorithmSettings
    uses_old: bool

    @property
    def entropy(self) -> Entropy:
        """Always looked at: a policy that loses it stops exploring, whether or not the loss has a term for it."""
        return "trained" if self.algorithm.entropy_coef > 0 else "measured"

    @property
    def column_names(self) -> tuple[str, ...]:
        needed = {
            "advantage": True,
            "old": self.uses_old,
            "reference": self.algorithm.kl_coef > 0,
            "behaviour": self.algorithm.needs_behaviour,
        }
        return tuple(name for name, is_needed in needed.items() if is_needed)

    def has_gradient(self, sample: Sample) -> bool:
        """Whether a scored sample needs a forward and backward pass: with an advantage of 0, other terms decide."""
        is_pulled = bool(torch.as_tensor(sample.advantage).any())
        return is_pulled or self.algorithm.kl_coef > 0 or self.algorithm.entropy_coef > 0

    def training_row(self, sample: Sample, row: Row) -> TrainingRow:
        return TrainingRow(row=row, columns={name: self._column(name, sample, row) for name in self.column_names})

    def idle_row(self) -> TrainingRow:
        """Takes part in a pass, with a gradient of exactly 0."""
        columns = {name: torch.zeros(len(IDLE_ROW.sampled)) for name in self.column_names}
        return TrainingRow(row=IDLE_ROW, columns=columns, has_weight=False)

    def numerator(self, rows: Sequence[TrainingRow], packed: PackedRows, scores: TokenScores) -> Numerator:
        """Of one forward pass."""
        device = packed.mask_BT.device
        mask_BT = packed.mask_BT & torch.tensor([row.has_weight for row in rows]).to(device)[:, None]
        columns = {
            name: packed.by_row(torch.cat([row.columns[name] for row in rows]).to(device)) for name in self.column_names
        }
        log_probs_BT = packed.by_row(scores.log_probs_N)
        loss = policy_loss(
            self.algorithm,
            log_probs_BT=log_probs_BT,
            old_BT=columns.get("old", log_probs_BT.detach()),
            behaviour_BT=columns.get("behaviour"),
            advantages_BT=columns["advantage"],
            mask_BT=mask_BT,
        )
        weights_BT = aggregation.token_weights(self.algorithm.aggregation, mask_BT)
        terms = {"policy_loss": aggregation.numerator(loss.loss_BT, weights_BT)}
        total = terms["policy_loss"]
        if "reference" in columns:
            kl_BT = kl_to_reference(log_probs_BT, columns["reference"], mask_BT, self.algorithm.kl_estimator)
            terms["kl"] = aggregation.numerator(kl_BT, weights_BT)
            total = total + self.algorithm.kl_coef * terms["kl"]
        if scores.entropy_N is not None:
            terms["entropy"] = aggregation.numerator(packed.by_row(scores.entropy_N), weights_BT)
            if self.entropy == "trained":
                total = total - self.algorithm.entropy_coef * terms["entropy"]
        weighted = {name: term.detach().double() for name, term in terms.items()}
        return Numerator(value=total, sums=PassSums(weighted=weighted, counted=loss.sums))

    def _column(self, name: str, sample: Sample, row: Row) -> Tensor:
        values = sample.advantage if name == "advantage" else getattr(sample.log_probs, name)
        if values is None and name == "behaviour" and self.algorithm.behaviour == "engine":
            values = _engine_log_probs(sample, row)
        if values is None:
            raise InvalidInput(
                f"every sample trained with {self._cause(name)} needs its {name} log-probs, "
                f"got none for {rollout_name(sample.rollout)}"
            )
        column = torch.as_tensor(values, dtype=torch.float32).detach().cpu()
        if column.ndim == 0:
            return column.expand(len(row.sampled))
        if column.shape != (len(row.sampled),):
            raise InvalidInput(
                f"{name} must have one entry for each sampled token, got shape {tuple(column.shape)} "
                f"for {len(row.sampled)} tokens in {rollout_name(sample.rollout)}"
            )
        return column

    def _cause(self, name: str) -> str:
        causes = {
            "old": "several updates a step",
            "reference": f"kl_coef={self.algorithm.kl_coef}",
            "behaviour": f"{self._why_behaviour()} and behaviour={self.algorithm.behaviour}",
        }
        return causes[name]

    def _why_behaviour(self) -> str:
        if self.algorithm.behaviour_weights is not None:
            return f"behaviour_weights={self.algorithm.behaviour_weights}"
        return "loss=decoupled" if self.algorithm.loss == "decoupled" else f"reject={self.algorithm.reject}"


def _engine_log_probs(sample: Sample, row: Row) -> Sequence[Any] | None:
    log_probs = sample.rollout.log_probs
    if log_probs is None:
        return None
    if len(log_probs) != row.num_tokens:
        raise InvalidInput(
            "log_probs of a rollout must be as long as its token_ids, "
            f"got {len(log_probs)} and {row.num_tokens} in {rollout_name(sample.rollout)}"
        )
    return [log_probs[position] for position in row.sampled]
