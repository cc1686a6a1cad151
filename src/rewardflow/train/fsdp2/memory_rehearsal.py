"""Runs the trainer of one rank of many on weights without data, and measures each phase.

Always true: the trainer, its loader and what it does in a step are those of a run; the group has ranks and no peers,
so nothing is sent. Rows are as long as the settings allow, and fill a pass. All phases after loading are of a step that
has Adam's state. What `offload` moves counts where it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from rewardflow.algo.estimator import TokenTargets
from rewardflow.errors import InvalidInput
from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.records import MicroBatch, Precomputed, Sample
from rewardflow.policy.load_policy import outline_policy
from rewardflow.policy.starting_weights import StartingWeights
from rewardflow.policy.weights_by_name import ALL_ROWS
from rewardflow.settings.run_settings import PolicySettings, RunSettings
from rewardflow.train.fsdp2.sharded_trainer import make_sharded_trainer
from rewardflow.train.fsdp2.sharding import Ranks
from rewardflow.train.fsdp2.trainer import TorchTrainer
from rewardflow.train.memory_phase import MemoryPhase, PhaseName
from rewardflow.train.memory_watch import HOST, MemoryWatch
from rewardflow.types import Reward, Rollout

_DEVICE = torch.device("cpu")  # FSDP2 needs no streams there; shapes and lifetimes are the same


def rehearse_memory(settings: RunSettings, *, num_ranks: int) -> tuple[MemoryPhase, ...]:
    """Returns the phases of a step in order. Takes seconds to minutes, and no memory to speak of."""
    with _group(num_ranks) as group, DeviceThread("memory") as thread:
        return asyncio.run(_Rehearsal(settings, thread, Ranks(_DEVICE, group)).phases())


@contextmanager
def _group(num_ranks: int) -> Iterator[dist.ProcessGroup | None]:
    if num_ranks == 1:
        yield None
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise InvalidInput("memory can be planned only in a process that is no rank of a group itself")
    dist.init_process_group("fake", rank=0, world_size=num_ranks, store=FakeStore())
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


class _Rehearsal:
    def __init__(self, settings: RunSettings, thread: DeviceThread, ranks: Ranks) -> None:
        self._settings = settings
        self._thread = thread
        self._ranks = ranks
        self._watch = MemoryWatch()
        self._phases: list[MemoryPhase] = []

    async def phases(self) -> tuple[MemoryPhase, ...]:
        await self._thread.run(self._watch.__enter__)
        try:
            trainer = await self._thread.run(self._load)
            await self._first_step(trainer)
            await self._later_step(trainer)
            await self._thread.run(lambda: _consume(trainer, getattr(torch, self._settings.engine_dtype)))
            self._ended("publish", trainer)
            taken = await trainer.take()
            self._ended("save", trainer)
            del taken
        finally:
            await self._thread.run(lambda: self._watch.__exit__(None, None, None))
        return tuple(self._phases)

    def _load(self) -> TorchTrainer:
        trainer = make_sharded_trainer(self._settings, self._thread, self._ranks, read=self._outline)
        self._ended("load", trainer)
        return trainer

    def _outline(self, settings: PolicySettings) -> StartingWeights:
        """Gives weights of the right shapes without data, in place of those of the model's files."""
        policy = outline_policy(settings)
        shapes = {name: one.shape for name, one in policy.model.state_dict().items()}

        def weight(name: str, rows: slice = ALL_ROWS, /) -> Tensor:
            num_rows = len(range(*rows.indices(shapes[name][0])))
            return self._watch.without_data(lambda: torch.empty((num_rows, *shapes[name][1:])), HOST)

        return StartingWeights(policy, weight)

    async def _first_step(self, trainer: TorchTrainer) -> None:
        """Makes Adam's state, which all later phases have."""
        async with trainer.step(0):
            await self._pass(trainer, 0)
            await trainer.optim_step()
        self._name_kinds(trainer)
        self._watch.peak()

    async def _later_step(self, trainer: TorchTrainer) -> None:
        """Measures what comes between two passes, then an update whose second pass adds to gradients.

        Log-probs of the next step are computed there if its responses are complete before this step is.
        """
        async with trainer.step(1):
            await self._pass(trainer, 1)
            self._watch.peak()
            await self._look(trainer)
            await self._pass(trainer, 1)
            await trainer.optim_step()
        self._ended("update", trainer)

    async def _pass(self, trainer: TorchTrainer, step: int) -> None:
        await trainer.forward_backward(self._batch(step))
        self._name_kinds(trainer)

    async def _look(self, trainer: TorchTrainer) -> None:
        rollouts = [sample.rollout for sample in self._samples()]
        await trainer.log_probs(rollouts, "policy")
        self._ended("log-probs", trainer)
        if trainer.reference is not None:
            await trainer.log_probs(rollouts, "reference")
            self._ended("reference", trainer)
        if trainer.critic is not None:
            await trainer.values(rollouts)
            self._ended("values", trainer)

    def _batch(self, step: int) -> MicroBatch:
        return MicroBatch(step=step, mini_batch=0, samples=tuple(self._samples(advantage=float(step))), is_last=True)

    def _samples(self, advantage: float = 1.0) -> Sequence[Sample]:
        generation = self._settings.generation
        num_prompt, num_response = generation.max_prompt_tokens, generation.max_response_tokens
        num_rows = max(1, self._settings.trainer.pass_tokens // (num_prompt + num_response))
        rollout = Rollout(
            group_id="g",
            response="",
            token_ids=[0] * (num_prompt + num_response),
            response_mask=[0] * num_prompt + [1] * num_response,
        )
        zeros_T = torch.zeros(num_response)
        known = Precomputed(old=zeros_T, reference=zeros_T, behaviour=zeros_T, values=zeros_T)
        given = TokenTargets(zeros_T + advantage, zeros_T) if self._settings.algorithm.kind.critic else advantage
        return [Sample(rollout=rollout, reward=Reward(value=1.0), advantage=given, precomputed=known)] * num_rows

    def _ended(self, name: PhaseName, trainer: TorchTrainer) -> None:
        self._name_kinds(trainer)
        peak = self._watch.peak()
        self._phases.append(
            MemoryPhase(name=name, by_kind={kind: size for kind, size in peak.by_kind.items() if kind != HOST})
        )

    def _name_kinds(self, trainer: TorchTrainer) -> None:
        """Tells the watch what lasts: weights, gradients and what optimizers remember."""
        weights = list(trainer.model.parameters())
        self._watch.is_a("weights", weights)
        self._watch.is_a("gradients", (weight.grad for weight in weights))
        self._watch.is_a("optimizer", (one for state in trainer.optimizer.state.values() for one in state.values()))
        if trainer.own_reference is not None:
            self._watch.is_a("reference", trainer.own_reference.parameters())
        if trainer.critic is not None:
            own = list(trainer.critic.model.parameters())
            remembered = (one for state in trainer.critic.optimizer.state.values() for one in state.values())
            self._watch.is_a("critic", [*own, *(weight.grad for weight in own), *remembered])


def _consume(trainer: TorchTrainer, dtype: torch.dtype) -> None:
    for _ in trainer.weights_to_send(dtype):
        pass
