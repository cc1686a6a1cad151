"""Turns samples into the scalar to differentiate: the numerator of one forward pass.

Always true: a row carries everything its loss needs, over its own sampled tokens, so no value can land on another row;
the numerator is a sum before any division, so the numerators of all passes of an update add up.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rewardflow.algo import aggregation
from rewardflow.algo.estimator import TokenTargets
from rewardflow.algo.kl import kl_to_reference
from rewardflow.algo.losses import TokenLoss, policy_loss
from rewardflow.algo.token_softmax import Entropy
from rewardflow.errors import InvalidInput
from rewardflow.flow.records import Sample
from rewardflow.settings.run_settings import AlgorithmSettings
from rewardflow.train.packing import IDLE_ROW, PackedRows, TokenRow, rollout_name
from rewardflow.train.staleness_sums import Compared, StalenessSums, staleness_sums
from rewardflow.train.token_log_probs import TokenScores
from rewardflow.types import Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """A row with what its loss is computed from; each column is float32 and has one entry for each sampled token.

    `engine` is what the engine said, for metrics; None where it said nothing.
    """

    row: TokenRow
    columns: Mapping[str, Tensor]
    engine: array[float] | None = None
    staleness: int = 0
    has_weight: bool = True

    def joined(self, other: TrainingRow) -> TrainingRow:
        """The same row with the columns of both."""
        return replace(self, columns={**self.columns, **other.columns})


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSums:
    """What one pass adds to the metrics, in float64: terms of the loss with its weights, and sums over tokens."""

    weighted: Mapping[str, Tensor]
    counted: Mapping[str, Tensor]
    by_staleness: Mapping[int, StalenessSums] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerator:
    """`value` is the scalar to differentiate; the sums have no gradient."""

    value: Tensor
    sums: PassSums


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerms:
    """The terms of the loss. `uses_old` is False if old equals present, or if the loss does not compare with it."""

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
        """Whether a scored sample needs a pass: with an advantage of 0, the other terms decide."""
        if self.algorithm.kl_coef > 0 or self.algorithm.entropy_coef > 0:
            return True
        # A tensor made of one number would take ten times as long, for each of thousands of samples.
        one = _advantage_of(sample)
        return one != 0 if isinstance(one, float) else bool(torch.as_tensor(one).any())

    def training_row(self, sample: Sample, row: TokenRow) -> TrainingRow:
        return TrainingRow(
            row=row,
            columns={name: self._column(name, sample, row) for name in self.column_names},
            engine=_engine_log_probs(sample.rollout, row),
            staleness=_staleness(sample.rollout),
        )

    def idle_row(self) -> TrainingRow:
        """Returns a row that takes part in a pass with a gradient of exactly 0."""
        nothing = torch.zeros(len(IDLE_ROW.sampled))
        columns = {name: nothing for name in self.column_names}
        engine = array("f", bytes(4 * len(IDLE_ROW.sampled)))
        return TrainingRow(row=IDLE_ROW, columns=columns, engine=engine, has_weight=False)

    def numerator(self, rows: Sequence[TrainingRow], packed: PackedRows, scores: TokenScores) -> Numerator:
        """Of one forward pass."""
        device = packed.mask_BT.device
        mask_BT = packed.mask_BT & torch.tensor([row.has_weight for row in rows]).to(device)[:, None]
        columns = {
            name: packed.by_row(torch.cat([row.columns[name] for row in rows]).to(device)) for name in self.column_names
        }
        log_probs_BT = packed.by_row(scores.log_probs_N)
        loss = self._policy_loss(log_probs_BT, columns, mask_BT)
        weights_BT = aggregation.token_weights(self.algorithm.aggregation, mask_BT)
        terms = {"policy_loss": aggregation.numerator(loss.loss_BT, weights_BT)}
        total = terms["policy_loss"]
        if "reference" in columns:
            kl_BT = kl_to_reference(log_probs_BT, columns["reference"], mask_BT, self.algorithm.kl_estimator)
            terms["kl"] = aggregation.numerator(kl_BT, weights_BT)
            total = total + self.algorithm.kl_coef * terms["kl"]
        entropy_BT = None if scores.entropy_N is None else packed.by_row(scores.entropy_N)
        if entropy_BT is not None and self.entropy == "trained":
            total = total - self.algorithm.entropy_coef * aggregation.numerator(entropy_BT, weights_BT)
        weighted = {name: term.detach().double() for name, term in terms.items()}
        looked_at = _Pass(rows, columns, self._compared(rows, packed, columns, log_probs_BT), entropy_BT, mask_BT)
        counted = {**loss.sums, **_entropy_sums(entropy_BT, mask_BT)}
        by_staleness = self._by_staleness(looked_at, counted)
        return Numerator(value=total, sums=PassSums(weighted=weighted, counted=counted, by_staleness=by_staleness))

    def _policy_loss(self, log_probs_BT: Tensor, columns: Mapping[str, Tensor], mask_BT: Tensor) -> TokenLoss:
        return policy_loss(
            self.algorithm,
            log_probs_BT=log_probs_BT,
            old_BT=columns.get("old", log_probs_BT.detach()),
            behaviour_BT=columns.get("behaviour"),
            advantages_BT=columns["advantage"],
            mask_BT=mask_BT,
        )

    def _compared(
        self, rows: Sequence[TrainingRow], packed: PackedRows, columns: Mapping[str, Tensor], log_probs_BT: Tensor
    ) -> Compared:
        present_BT = log_probs_BT.detach()
        spoken = [row.engine for row in rows if row.engine is not None]
        engine_BT = None
        if len(spoken) == len(rows):
            engine_BT = packed.by_row(_tensor_of(*spoken).to(present_BT.device))
        behaviour_BT = columns.get("behaviour", engine_BT)
        is_trainers = self.algorithm.behaviour == "trainer" and "behaviour" in columns
        return Compared(
            present_BT=present_BT,
            behaviour_BT=behaviour_BT,
            trainer_BT=columns["behaviour"] if is_trainers else columns.get("old", present_BT),
            engine_BT=engine_BT,
        )

    @torch.no_grad()
    def _by_staleness(self, looked_at: _Pass, counted: Mapping[str, Tensor]) -> dict[int, StalenessSums]:
        """Most passes have rows of one staleness; for those of others the loss is summed once more, row by row."""
        staleness = sorted({row.staleness for row in looked_at.rows})
        found = {}
        for number in staleness:
            mask_BT, sums = looked_at.mask_BT, counted
            if len(staleness) > 1:
                of_these = torch.tensor([row.staleness == number for row in looked_at.rows])
                mask_BT = mask_BT & of_these.to(mask_BT.device)[:, None]
                loss = self._policy_loss(looked_at.compared.present_BT, looked_at.columns, mask_BT)
                sums = {**loss.sums, **_entropy_sums(looked_at.entropy_BT, mask_BT)}
            found[number] = staleness_sums(looked_at.compared, sums, mask_BT)
        return found

    def _column(self, name: str, sample: Sample, row: TokenRow) -> Tensor:
        values = _advantage_of(sample) if name == "advantage" else getattr(sample.precomputed, name)
        if values is None and name == "behaviour" and self.algorithm.behaviour == "engine":
            spoken = _engine_log_probs(sample.rollout, row)
            values = None if spoken is None else _tensor_of(spoken)
        if values is None:
            raise InvalidInput(
                f"every sample trained with {self._cause(name)} needs its {name} log-probs, "
                f"got none for {rollout_name(sample.rollout)}"
            )
        return column_of(name, values, sample, row)

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
        if self.algorithm.ratio_to == "behaviour":
            return "ratio_to=behaviour"
        return "loss=decoupled" if self.algorithm.loss == "decoupled" else f"reject={self.algorithm.reject}"


def column_of(name: str, values: Any, sample: Sample, row: TokenRow) -> Tensor:
    """Returns one float32 for each sampled token; a single number is repeated for all of them."""
    if isinstance(values, float):
        return torch.full((len(row.sampled),), values)  # much faster than by way of a tensor of one
    column = torch.as_tensor(values, dtype=torch.float32).detach().cpu()
    if column.ndim == 0:
        return column.expand(len(row.sampled))
    if column.shape != (len(row.sampled),):
        raise InvalidInput(
            f"{name} must have one entry for each sampled token, got shape {tuple(column.shape)} "
            f"for {len(row.sampled)} tokens in {rollout_name(sample.rollout)}"
        )
    return column


def _advantage_of(sample: Sample) -> Any:
    advantage = sample.advantage
    return advantage.advantages_T if isinstance(advantage, TokenTargets) else advantage


@dataclass(frozen=True, slots=True)
class _Pass:
    """The tensors of one forward pass that its metrics need."""

    rows: Sequence[TrainingRow]
    columns: Mapping[str, Tensor]
    compared: Compared
    entropy_BT: Tensor | None
    mask_BT: Tensor


def _entropy_sums(entropy_BT: Tensor | None, mask_BT: Tensor) -> dict[str, Tensor]:
    """Over the tokens alone, because it is looked at also where rows that need no pass leave it out."""
    if entropy_BT is None:
        return {}
    return {"entropy": torch.where(mask_BT, entropy_BT.detach(), 0.0).sum(dtype=torch.float64)}


def _engine_log_probs(rollout: Rollout, row: TokenRow) -> array[float] | None:
    """Of the sampled tokens, in float32, without a loop over them; a tensor for each row would cost more than it."""
    log_probs = rollout.log_probs
    if log_probs is None:
        return None
    if len(log_probs) != row.num_tokens:
        raise InvalidInput(
            "log_probs of a rollout must be as long as its token_ids, "
            f"got {len(log_probs)} and {row.num_tokens} in {rollout_name(rollout)}"
        )
    is_ready = isinstance(log_probs, array) and log_probs.typecode == "f"
    all_of_them: array[float] = log_probs if is_ready else array("f", log_probs)  # type: ignore[assignment]
    first, last = row.sampled[0], row.sampled[-1]
    if last - first + 1 == len(row.sampled):
        return all_of_them[first : last + 1]
    return array("f", itertools.compress(all_of_them, rollout.response_mask or ()))


def _tensor_of(*columns: array[float]) -> Tensor:
    return torch.frombuffer(bytearray(b"".join(columns)), dtype=torch.float32)


def _staleness(rollout: Rollout) -> int:
    return 0 if rollout.policy_version is None else max(0, rollout.step - rollout.policy_version)
