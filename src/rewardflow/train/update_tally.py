"""Counts what every trainer counts between two updates, and reports the update.

Always true: a scored sample has its share of the denominator whether or not it goes through the model; an update that
leaves the weights unchanged says why.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rewardflow.algo.aggregation import token_share_divisor
from rewardflow.flow.records import MicroBatch, Sample, UpdateReport
from rewardflow.settings.run_settings import Aggregation
from rewardflow.train.accumulated import Accumulated, UpdateSums
from rewardflow.train.fsdp2.sharding import Ranks
from rewardflow.train.loss_terms import PassSums
from rewardflow.train.packing import TokenRow

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerStatistics:
    """Counts of this rank since the trainer was built."""

    num_updates: int = 0  # that changed the weights
    num_empty_updates: int = 0  # left out because nothing was scored
    num_nonfinite_updates: int = 0  # left out because the gradient was not finite
    num_passes: int = 0  # forward and backward
    num_rows: int = 0  # that went through them
    num_rows_without_gradient: int = 0  # that were scored and did not need to


class UpdateTally:
    """One rank's counts: `take` a micro-batch, `add` its passes, `close` the update, `told` its report."""

    def __init__(self, aggregation: Aggregation, max_response_tokens: int) -> None:
        self._aggregation = aggregation
        self._max_response_tokens = max_response_tokens
        self._accumulated = Accumulated()
        self._statistics = TrainerStatistics()

    def statistics(self) -> TrainerStatistics:
        return self._statistics

    def take(self, batch: MicroBatch) -> list[tuple[Sample, TokenRow]]:
        """Counts and returns the samples to train on, also those without a sampled token, which need no pass."""
        scored = [(sample, TokenRow.of(sample.rollout)) for sample in batch.samples if sample.why_not is None]
        self._accumulated.count([row for _, row in scored], self._aggregation, self._max_response_tokens)
        return scored

    def count_rows(self, scored: Sequence[object], trained: Sequence[object]) -> None:
        self._count(num_rows=len(trained), num_rows_without_gradient=len(scored) - len(trained))

    def count_passes(self, number: int) -> None:
        self._count(num_passes=number)

    def add(self, sums: PassSums) -> None:
        self._accumulated.add(sums)

    def forget(self) -> None:
        """Discards what was counted since the last update."""
        self._accumulated = Accumulated()

    def close(self, ranks: Ranks, token_share: float = 1.0) -> UpdateSums:
        """Returns the sums over all ranks since the last update."""
        accumulated, self._accumulated = self._accumulated, Accumulated()
        return accumulated.summed(ranks, token_share_divisor(self._aggregation, token_share))

    def told(self, sums: UpdateSums, *, grad_norm: float | None, lr: float, step: int) -> UpdateReport:
        """Reports the update. `grad_norm` is None if nothing was to change; a non-finite one skipped the update."""
        is_empty = sums.denominator == 0
        is_nonfinite = grad_norm is not None and not math.isfinite(grad_norm)
        if is_nonfinite:
            logger.warning("step %d: the gradient's norm is %s, so the weights stay as they are", step, grad_norm)
        self._count(
            num_updates=grad_norm is not None and not is_nonfinite,
            num_empty_updates=is_empty,
            num_nonfinite_updates=is_nonfinite,
        )
        skipped = {"skipped_empty": float(is_empty), "skipped_nonfinite": float(is_nonfinite)}
        return UpdateReport(
            num_sequences=sums.num_sequences,
            num_tokens=sums.num_tokens,
            grad_norm=grad_norm or 0.0,
            lr=lr,
            metrics={**sums.metrics, **skipped},
            by_staleness=sums.by_staleness,
        )

    def _count(self, **added: int) -> None:
        totals = {name: getattr(self._statistics, name) + number for name, number in added.items()}
        self._statistics = replace(self._statistics, **totals)
