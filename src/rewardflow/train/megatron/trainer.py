"""The trainer on Megatron: what one rank of it holds and does.

Always true: as with the other trainer, how an update was cut into micro-batches changes its gradient by rounding
alone, a failed sample has no part in it, and ranks make the same number of passes; loss terms, packing, denominators
and reports are the same code. Gradients are reduced once, by the update.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from rewardflow.config.tree import AlgorithmSettings, TrainerSettings
from rewardflow.device_thread import DeviceThread
from rewardflow.errors import InvalidInput
from rewardflow.flow.records import MicroBatch, UpdateReport
from rewardflow.train.accumulated import UpdateSums
from rewardflow.train.learning_rate import share
from rewardflow.train.loss_terms import LossTerms
from rewardflow.train.megatron import weights
from rewardflow.train.megatron.building import ModelPart, build_part
from rewardflow.train.megatron.gradients import DistributedGradients
from rewardflow.train.megatron.layout import Axis, Layout
from rewardflow.train.megatron.pipeline import Pipeline
from rewardflow.train.megatron.state import Saved, put_weights, read_state, state_of
from rewardflow.train.megatron.weights import WeightSource
from rewardflow.train.packing import IDLE_ROW, Row, pack
from rewardflow.train.passes import by_row, even_passes
from rewardflow.train.tally import Tally, TrainerStatistics
from rewardflow.train.token_log_probs import TokenScores
from rewardflow.types import Rollout

T = TypeVar("T")

CPU = torch.device("cpu")
COMPUTE_DTYPES = {None: torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16}


class MegatronTrainer:
    """A rank's `Trainer`. All ranks call the same methods in the same order; those of a replica with the same samples.

    `config` is the model's configuration of transformers; `source` gives its weights, and `reference` those of the
    reference, by name. Every rank returns the same reports, and the log-probs of its replica's rollouts.
    """

    def __init__(
        self,
        config: Any,
        source: WeightSource,
        *,
        layout: Layout,
        trainer: TrainerSettings,
        algorithm: AlgorithmSettings,
        uses_old: bool,
        temperature: float,
        max_response_tokens: int,
        total_steps: int,
        thread: DeviceThread,
        reference: WeightSource | None = None,
        recompute: bool = False,
    ) -> None:
        if trainer.autocast not in COMPUTE_DTYPES:
            raise InvalidInput(
                "training computes in float32 or bfloat16, because float16 needs its losses scaled, "
                f"got trainer.autocast={trainer.autocast}"
            )
        self.layout = layout
        self._settings = trainer
        self._terms = LossTerms(algorithm=algorithm, uses_old=uses_old)
        self._temperature = temperature
        self._total_steps = total_steps
        self._thread = thread
        build = partial(build_part, config, trainer.megatron, layout, compute=COMPUTE_DTYPES[trainer.autocast])
        self.part = build(recompute=recompute)
        weights.fill(self.part, source)
        self._reference = None if reference is None else _frozen(build(), reference)
        self._gradients = DistributedGradients(self.part, trainer)
        put_weights(self.part, self._gradients, source)  # the optimizer's own are float32
        self._pipeline = Pipeline(part=self.part, module=self._gradients.module, temperature=temperature)
        self._tally = Tally(algorithm.aggregation, max_response_tokens)
        self._open_step: int | None = None
        self.rest()

    def statistics(self) -> TrainerStatistics:
        return self._tally.statistics()

    @property
    def lr(self) -> float:
        return self._gradients.lr

    @asynccontextmanager
    async def step(self, number: int) -> AsyncIterator[None]:
        try:
            await self._run(partial(self._begin_step, number))
            yield
        finally:
            await self._run(partial(self._end_step, number))

    async def log_probs(self, rollouts: Sequence[Rollout], of: Literal["policy", "reference"]) -> Sequence[Tensor]:
        """For each rollout one float32 tensor on the CPU, with an entry for each sampled token."""
        return await self._run(partial(self._log_probs, rollouts, of))

    async def forward_backward(self, batch: MicroBatch) -> None:
        await self._run(partial(self._forward_backward, batch))

    async def optim_step(self) -> UpdateReport:
        return await self._run(self._optim_step)

    async def state(self) -> dict[str, Tensor]:
        """Weights and optimizer state for `checkpoint.model_state.write_state`, as another backend would name them."""
        return await self._run(partial(state_of, self.part, self._gradients))

    async def put_back(self, saved: Saved) -> None:
        """Of a checkpoint that any layout, or the other backend, wrote."""
        await self._run(partial(read_state, self.part, self._gradients, saved))

    def stage_weights(self) -> Iterator[tuple[str, Tensor]]:
        """As `weights.stage_weights`; on the trainer's thread, while it does nothing else."""
        return weights.stage_weights(self.part)

    def all_weights(self) -> Iterator[tuple[str, Tensor]]:
        """As `weights.all_weights`; on the trainer's thread, while it does nothing else."""
        return weights.all_weights(self.part)

    async def _run(self, compute: Callable[[], T]) -> T:
        def on_own_device() -> T:
            with torch.accelerator.device_index(self.layout.device.index):  # which device is current is per thread
                return compute()

        return await self._thread.run(on_own_device)

    # -- on the thread: a step ---------------------------------------------------------------------------------------

    def _begin_step(self, number: int) -> None:
        if self._open_step is not None:
            raise InvalidInput(f"one step must end before the next begins, got {number} within {self._open_step}")
        self._open_step = number
        self._set_learning_rate(number)
        if self._settings.offload:
            self._gradients.move_state(None)

    def _end_step(self, number: int) -> None:
        """The rate is the next step's, however many updates there were; what was not stepped on is forgotten."""
        self._open_step = None
        self._gradients.clear()
        self._tally.forget()
        self._set_learning_rate(number + 1)
        self.rest()

    def rest(self) -> None:
        """As between two steps: with `offload` the optimizer's state and the reference are off the device."""
        if self._settings.offload:
            self._gradients.move_state(CPU)
            if self._reference is not None:
                self._reference.module.to(CPU)
            if self.layout.device.type == "cuda":
                torch.cuda.empty_cache()

    def _set_learning_rate(self, number: int) -> None:
        self._gradients.set_learning_rate(self._settings.lr * share(number, self._total_steps, self._settings))

    # -- on the thread: passes ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def _log_probs(self, rollouts: Sequence[Rollout], of: Literal["policy", "reference"]) -> list[Tensor]:
        rows = [Row.of(rollout) for rollout in rollouts]
        passes = even_passes(rows, self._settings.micro_batch_tokens, self.layout.replicas)
        chosen = [[rows[index] for index in indices] or [IDLE_ROW] for indices in passes]
        device = self.layout.device
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
        """A model that is only looked at; with `offload` the reference is on its device only meanwhile."""
        if of == "policy":
            self.part.module.eval()
            yield Pipeline(part=self.part, module=self.part.module, temperature=self._temperature)
            return
        part = self._reference
        if part is None:
            raise InvalidInput("log-probs of the reference need a reference model, got reference=None")
        part.module.to(self.layout.device)
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
        plan = even_passes([row.row for row in rows], self._settings.micro_batch_tokens, self.layout.replicas)
        passes = [[rows[index] for index in indices] or [self._terms.idle_row()] for indices in plan]
        packed = [pack([row.row for row in one], self.layout.device) for one in passes]

        def lose(number: int, scores: TokenScores) -> Tensor:
            numerator = self._terms.numerator(passes[number], packed[number], scores)
            self._tally.add(numerator.sums)
            return numerator.value

        self.part.module.train()
        self._pipeline.run(packed, lose, entropy=self._terms.entropy, backward=True)
        self._tally.count_passes(len(passes))

    # -- on the thread: an update ------------------------------------------------------------------------------------

    def _optim_step(self) -> UpdateReport:
        if self._open_step is None:
            raise InvalidInput(
                "an update is part of a step: call optim_step() within `async with trainer.step(number)`"
            )
        sums = self._sums()
        grad_norm = None
        if sums.denominator:
            grad_norm = self._gradients.update(1.0 / sums.denominator)
        else:
            self._gradients.clear()
        return self._tally.told(sums, grad_norm=grad_norm, lr=self.lr, step=self._open_step)

    def _sums(self) -> UpdateSums:
        """Of all replicas. The last stages know them, because the loss is there, and tell the others."""
        axis = self.layout.pipeline
        sums = self._tally.close(self.layout.replicas) if axis.is_last else None
        if not axis.is_last:
            self._tally.forget()
        if axis.size > 1:
            told = [sums]
            dist.broadcast_object_list(told, dist.get_global_rank(axis.group, axis.size - 1), axis.group)
            sums = told[0]
        assert sums is not None
        return sums


def _frozen(part: ModelPart, source: WeightSource) -> ModelPart:
    weights.fill(part, source)
    part.module.requires_grad_(False)
    part.module.eval()
    return part


def _from_last(column: Tensor, axis: Axis) -> None:
    if axis.size > 1:
        dist.broadcast(column, dist.get_global_rank(axis.group, axis.size - 1), axis.group)
