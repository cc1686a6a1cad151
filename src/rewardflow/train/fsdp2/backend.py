"""The back end `fsdp2`: trains the policy's own module, alone or spread over ranks by FSDP2."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

from rewardflow.flow.device_thread import DeviceThread
from rewardflow.settings.run_settings import RunSettings
from rewardflow.train.backends import HeldBytes, TrainerBackend

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from rewardflow.policy.load_policy import Policy
    from rewardflow.train.device_trainer import DeviceTrainer
    from rewardflow.train.fsdp2.trainer import TorchTrainer
    from rewardflow.train.memory_phase import MemoryPhase


class Fsdp2Backend(TrainerBackend):
    """Every rank is a replica, which holds a part of each weight."""

    trains_policy_model = True
    needs_process_group = False
    keeps_gradients = False

    def check_one_process(self, settings: RunSettings) -> None:
        """Accepts all settings: one process is enough, and torch is checked for every run."""

    def rehearse(self, settings: RunSettings, policy: Policy, thread: DeviceThread) -> None:
        if settings.policy.lora is not None:  # a trainer adds adapters, and the outline is used for more
            policy = replace(policy, model=copy.deepcopy(policy.model))
        _make_trainer(settings, policy, thread)

    def rehearse_memory(self, settings: RunSettings) -> tuple[MemoryPhase, ...]:
        from rewardflow.train.fsdp2.memory_rehearsal import rehearse_memory

        return rehearse_memory(settings, num_ranks=settings.runtime.ranks)

    def held_by_rank(self, settings: RunSettings, policy: Policy, whole: HeldBytes) -> HeldBytes:
        """Every rank has an equal part; with several, what does not train has the dtype that passes compute in."""
        from rewardflow.train.device_trainer import compute_dtype_of

        ranks, compute = settings.runtime.ranks, compute_dtype_of(settings.trainer)
        if ranks > 1 and compute is not None:
            frozen = compute.itemsize * sum(weight.numel() for weight in policy.model.parameters())
            if settings.policy.lora is not None:  # whose adapters alone have gradients
                whole = replace(whole, weights=whole.gradients + frozen)
            if whole.reference:
                whole = replace(whole, reference=frozen)
        return HeldBytes(**{kind: size // ranks for kind, size in asdict(whole).items()})

    def describe_ranks(self, settings: RunSettings) -> str:
        return ""

    @contextmanager
    def open_alone(
        self, settings: RunSettings, policy: Policy, thread: DeviceThread, device: torch.device
    ) -> Iterator[DeviceTrainer]:
        trainer = _make_trainer(settings, policy, thread)
        trainer.check_passes()
        yield trainer

    def prepare_rank(self) -> None:
        """Does nothing: torch is all that a rank needs."""

    @contextmanager
    def open_rank(
        self,
        settings: RunSettings,
        policy: Policy | None,
        thread: DeviceThread,
        device: torch.device,
        group: dist.ProcessGroup | None,
    ) -> Iterator[DeviceTrainer]:
        """Trains the given policy; without one, every rank reads its own part of the weights."""
        from rewardflow.policy.starting_weights import StartingWeights
        from rewardflow.train.fsdp2.sharded_trainer import make_sharded_trainer
        from rewardflow.train.fsdp2.sharding import Ranks

        if policy is not None:
            trainer = _make_trainer(settings, policy, thread, group=group)
        else:
            read = partial(StartingWeights.read, seed=settings.seed)
            trainer = make_sharded_trainer(settings, thread, Ranks(device, group), read=read)
        trainer.check_passes()
        yield trainer


def _make_trainer(
    settings: RunSettings, policy: Policy, thread: DeviceThread, *, group: dist.ProcessGroup | None = None
) -> TorchTrainer:
    """`group` has the ranks that train together, each with the same policy."""
    from rewardflow.policy.adapters import add_adapters
    from rewardflow.policy.value_model import build_value_model
    from rewardflow.train.device_trainer import arguments_of
    from rewardflow.train.fsdp2.critic import CriticPart
    from rewardflow.train.fsdp2.trainer import TorchTrainer

    critic = None
    if settings.algorithm.kind.critic:
        value_model = build_value_model(policy, settings.critic, settings.policy, seed=settings.seed)
        critic = CriticPart(model=value_model, settings=settings.critic)
    if settings.policy.lora is not None:
        add_adapters(policy.model, settings.policy.lora, seed=settings.seed)
    reference = None
    if settings.algorithm.needs_reference:
        reference = policy.reference() if settings.policy.lora is None else policy.model
    return TorchTrainer(
        policy.model,
        **arguments_of(settings, thread),
        reference=reference,
        critic=critic,
        group=group,
    )


BACKEND = Fsdp2Backend()
