"""The critic beside the policy: its model, its optimizer, and the sums for its next update.

Always true: the critic learns in the passes and updates of its trainer, from the same rows and by the same denominator;
its optimizer has all weights of the value model and none of the policy's. A head on the policy's trunk learns with its
own optimizer and rate, while the trunk, which stays the policy's, gets `trunk_weight` of the head's gradient.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rewardflow.settings.run_settings import Aggregation, CriticSettings
from rewardflow.train.fsdp2.optimizer import build_optimizer, fill_with_zeros, move_state, set_learning_rate, update
from rewardflow.train.fsdp2.sharding import Ranks, is_sharded, shard
from rewardflow.train.learning_rate import share
from rewardflow.train.loss_terms import TrainingRow
from rewardflow.train.packing import PackedRows
from rewardflow.train.value_terms import NUM_SUMS, ValueTerms, value_metrics

if TYPE_CHECKING:
    from rewardflow.policy.value_model import ValueModel

logger = logging.getLogger(__name__)

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticPart:
    """What a trainer needs for a critic: a whole value model, equal on every rank, on the policy's device."""

    model: ValueModel
    settings: CriticSettings


class Critic:
    """A value model in training. All of it runs on the trainer's thread."""

    def __init__(
        self,
        part: CriticPart,
        *,
        ranks: Ranks,
        compute: torch.dtype | None,
        offload: bool,
        aggregation: Aggregation,
        total_steps: int,
    ) -> None:
        self.model = part.model
        self.settings = part.settings
        self.terms = ValueTerms(aggregation=aggregation, clip=part.settings.clip)
        self._ranks = ranks
        self._compute = compute
        self._total_steps = total_steps
        if self.model.trunk is not None:
            shard(self.model.trunk, ranks, compute=compute)
        shard(self.model.head, ranks, compute=None)
        self._leaves_device = offload and ranks.device.type != "meta"  # an outline has nothing to move
        self.optimizer = build_optimizer(self.model, part.settings)
        self._sums: list[Tensor] = []
        self.rest()

    @property
    def shares_trunk(self) -> bool:
        return self.model.trunk is None

    def learns_alone_in(self, step: int) -> bool:
        return step < self.settings.alone_steps

    # -- a step ------------------------------------------------------------------------------------------------------

    def begin_step(self, number: int) -> None:
        set_learning_rate(self.optimizer, self.settings.lr * share(number, self._total_steps, self.settings))
        if self._leaves_device:
            self.model.to(self._ranks.device)
            move_state(self.optimizer, None)

    def end_step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self._sums = []

    def rest(self) -> None:
        """With `offload`, moves the critic off the device, because no engine generates with it."""
        if self._leaves_device:
            self.model.to(CPU)
            move_state(self.optimizer, CPU)

    # -- passes ------------------------------------------------------------------------------------------------------

    def values(self, packed: PackedRows) -> Tensor:
        """Returns a value for every sampled token from the critic's own trunk, at the position before the token."""
        trunk = self.model.trunk
        assert trunk is not None
        autocast = None if is_sharded(trunk) else self._compute  # FSDP2 casts by itself
        with torch.autocast(packed.input_ids_BL.device.type, autocast, autocast is not None):
            hidden_BLD: Tensor = trunk(**packed.inputs(), use_cache=False).last_hidden_state
        return self.model.of_hidden(hidden_BLD[packed.row_N, packed.position_N - 1])

    def shared_values(self, hidden_ND: Tensor) -> Tensor:
        """As `values`, from the policy's trunk, which gets `trunk_weight` of the head's gradient."""
        weight = self.settings.trunk_weight
        fixed_ND = hidden_ND.detach()
        return self.model.of_hidden(fixed_ND if weight == 0 else fixed_ND + weight * (hidden_ND - fixed_ND))

    def numerator(self, rows: Sequence[TrainingRow], packed: PackedRows, values_N: Tensor) -> Tensor:
        """Returns the scalar to differentiate in this pass, and keeps its sums."""
        numerator = self.terms.numerator(rows, packed, values_N)
        self._sums.append(numerator.sums_S)
        return numerator.value

    # -- an update ---------------------------------------------------------------------------------------------------

    def update(self, denominator: float) -> dict[str, float]:
        """Takes one optimizer step, unless the denominator is 0 or the gradient not finite; returns its metrics."""
        sums_S = torch.stack(self._sums).sum(0).cpu() if self._sums else torch.zeros(NUM_SUMS, dtype=torch.float64)
        num_passes, self._sums = len(self._sums), []
        sums_S = self._ranks.sum(sums_S)
        if denominator == 0:
            self.optimizer.zero_grad(set_to_none=True)
            return {}
        if num_passes == 0:
            fill_with_zeros(self.optimizer)
        scale = self._ranks.size / denominator  # FSDP2 reduces to the mean over ranks
        grad_norm = update(self.optimizer, scale=scale, max_grad_norm=self.settings.max_grad_norm)
        is_finite = math.isfinite(grad_norm)
        if not is_finite:
            logger.warning("the norm of the critic's gradient is %s, so its weights stay as they are", grad_norm)
        return {
            **value_metrics(sums_S, denominator),
            "critic_grad_norm": grad_norm,
            "critic_lr": float(self.optimizer.param_groups[0]["lr"]),
            "critic_skipped_nonfinite": 0.0 if is_finite else 1.0,
        }
