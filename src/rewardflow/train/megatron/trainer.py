"""The trainer on Megatron: what one rank of it holds and does.

Always true: as with the other trainer, how an update is cut into micro-batches changes its gradient by rounding alone,
failed samples contribute nothing, and ranks make the same number of passes; the order of a step, loss terms, packing,
denominators and reports are the same code. The update reduces gradients, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack

import torch
import torch.distributed as dist
from torch import Tensor

from rewardflow.checkpoint.model_state import SavedState, State
from rewardflow.errors import InvalidInput
from rewardflow.flow.records import MicroBatch
from rewardflow.policy.accelerator import release_cached_memory
from rewardflow.policy.weights_by_name import WeightSource
from rewardflow.train.accumulated import UpdateSums
from rewardflow.train.device_trainer import CPU, DeviceTrainer, RankRole, TrainerArguments
from rewardflow.train.learning_rate import share
from rewardflow.train.megatron import weight_conversion as weights
from rewardflow.train.megatron.building import ModelPart, build_part
from rewardflow.train.megatron.gradients import DistributedGradients
from rewardflow.train.megatron.layout import Axis, Layout
from rewardflow.train.megatron.pipeline import Pipeline
from rewardflow.train.megatron.saved_state import put_weights, read_state, state_of
from rewardflow.train.packing import IDLE_ROW, TokenRow, pack
from rewardflow.train.passes import by_row, even_passes
from rewardflow.train.token_log_probs import TokenScores
from rewardflow.types import Rollout


class MegatronTrainer(DeviceTrainer):
    """The trainer of one rank, which holds its own weights: its part of the model.

    `config` is the model's configuration of transformers; `source` gives the model's weights by name, and `reference`
    those of the reference model. Every rank returns the same reports, and the log-probs of its replica's rollouts.
    """

    def __init__(
        self,
        config: Any,
        source: WeightSource,
        *,
        layout: Layout,
        reference: WeightSource | None = None,
        recompute: bool = False,
        **told: Unpack[TrainerArguments],
    ) -> None:
        super().__init__(layout.device, **told)
        self.layout = layout
        self.role = RankRole(
            replica=layout.data.rank,
            num_replicas=layout.data.size,
            speaks=layout.pipeline.is_last and layout.tensor.rank == layout.context.rank == 0,
            sends_weights=layout.is_leader,
        )
        build = partial(build_part, config, self._settings.megatron, layout, compute=self._autocast or torch.float32)
        self.part = build(recompute=recompute)
        weights.fill(self.part, source)
        self._reference = None if reference is None else _frozen(build(), reference)
        self._gradients = DistributedGradients(self.part, self._settings)
        put_weights(self.part, self._gradients, source)  # the optimizer's own are float32
        self._pipeline = Pipeline(part=self.part, module=self._gradients.module, temperature=self._temperature)
        self.rest()

    @property
    def lr(self) -> float:
        return self._gradients.lr

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        return _in_dtype(weights.all_weights(self.part), dtype)

    def weights_to_send(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """Yields the weights of this rank's pipeline stage, gathered over the tensor axis by the first replica."""
        return _in_dtype(weights.stage_weights(self.part), dtype) if self.layout.holders.rank == 0 else iter(())

    # -- on the thread: a step ---------------------------------------------------------------------------------------

    def _load(self, number: int) -> None:
        if self._settings.offload:
            self._gradients.move_state(None)

    def _clear_gradients(self) -> None:
        self._gradients.clear()

    def rest(self) -> None:
        """With `offload`, moves the optimizer's state and the reference off the device."""
        if self._settings.offload:
            self._gradients.move_state(CPU)
            if self._reference is not None:
                self._reference.module.to(CPU)
            release_cached_memory()

    def _set_learning_rate(self, number: int) -> None:
        self._gradients.set_learning_rate(self._settings.lr * share(number, self._total_steps, self._settings))

    # -- on the thread: passes ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def _log_probs(self, rollouts: Sequence[Rollout], of: Literal["policy", "reference"]) -> list[Tensor]:
        rows = [TokenRow.of(rollout) for rollout in rollouts]
        passes = even_passes(rows, self._settings.pass_tokens, self.layout.replicas)
        chosen = [[rows[index] for index in indices] or [IDLE_ROW] for indices in passes]
        device = self._device
        found = [torch.empty(sum(len(row.sampled) for row in one), device=device) for one in chosen]

        def keep(number: int, scores: TokenScores) -> Tensor:
            found[number].copy_(scores.log_probs_N)
            return scores.log_probs_N.sum()

        with self._looking(of) as pipeline:
            pipeline.run([pack(one, device) for one in chosen], keep)
        for column in found:
            _from_last(column, self.layout.pipeline)
        return by_row(found, passes, rows)

    @contextmanager
    def _looking(self, of: Literal["policy", "reference"]) -> Iterator[Pipeline]:
        """Gives a pipeline without gradients; with `offload`, the reference is on its device only during the block."""
        if of == "policy":
            self.part.module.eval()
            yield Pipeline(part=self.part, module=self.part.module, temperature=self._temperature)
            return
        part = self._reference
        if part is None:
            raise InvalidInput("log-probs of the reference need a reference model, got reference=None")
        part.module.to(self._device)
        try:
            yield Pipeline(part=part, module=part.module, temperature=self._temperature)
        finally:
            if self._settings.offload:
                part.module.to(CPU)

    def _forward_backward(self, batch: MicroBatch) -> None:
        scored = self._tally.take(batch)
        rows = [
            self._terms.training_row(sample, row)
            for sample, row in scored
            if row.sampled and self._terms.has_gradient(sample)
        ]
        self._tally.count_rows(scored, rows)
        plan = even_passes([row.row for row in rows], self._settings.pass_tokens, self.layout.replicas)
        passes = [[rows[index] for index in indices] or [self._terms.idle_row()] for indices in plan]
        packed = [pack([row.row for row in one], self._device) for one in passes]

        def lose(number: int, scores: TokenScores) -> Tensor:
            numerator = self._terms.numerator(passes[number], packed[number], scores)
            self._tally.add(numerator.sums)
            return numerator.value

        self.part.module.train()
        self._pipeline.run(packed, lose, entropy=self._terms.entropy, backward=True)
        self._tally.count_passes(len(passes))

    # -- on the thread: an update ------------------------------------------------------------------------------------

    def _update(self, token_share: float) -> tuple[UpdateSums, float | None]:
        sums = self._sums(token_share)
        if sums.denominator:
            return sums, self._gradients.update(1.0 / sums.denominator)
        self._gradients.clear()
        return sums, None

    def _sums(self, token_share: float) -> UpdateSums:
        """Returns the sums of all replicas. The last stages compute the loss, so they send the sums to the others."""
        axis = self.layout.pipeline
        sums = self._tally.close(self.layout.replicas, token_share) if axis.is_last else None
        if not axis.is_last:
            self._tally.forget()
        if axis.size > 1:
            told = [sums]
            dist.broadcast_object_list(told, dist.get_global_rank(axis.group, axis.size - 1), axis.group)
            sums = told[0]
        assert sums is not None
        return sums

    # -- on the thread: checkpoints ----------------------------------------------------------------------------------

    def _state(self) -> State:
        return state_of(self.part, self._gradients)

    def _read_state(self, folder: Path) -> None:
        read_state(self.part, self._gradients, SavedState(folder))


def _frozen(part: ModelPart, source: WeightSource) -> ModelPart:
    weights.fill(part, source)
    part.module.requires_grad_(False)
    part.module.eval()
    return part


def _in_dtype(named: Iterator[tuple[str, Tensor]], dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
    """Casts after gathering: a part's weights have the dtype that it computes in already."""
    return ((name, weight.to(dtype or weight.dtype)) for name, weight in named)


def _from_last(column: Tensor, axis: Axis) -> None:
    if axis.size > 1:
        dist.broadcast(column, dist.get_global_rank(axis.group, axis.size - 1), axis.group)
