"""The back end `megatron`: trains weights of its own, in Megatron's form, cut over tensor, pipeline and context ranks.

Always true: importing this module needs no megatron-core; a run in one process leaves the process group as it was
entered, also where the run fails.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rewardflow.errors import InvalidInput
from rewardflow.extras import install_command
from rewardflow.flow.device_thread import DeviceThread
from rewardflow.settings.run_settings import MegatronSettings, RunSettings
from rewardflow.train.backends import HeldBytes, TrainerBackend

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from rewardflow.policy.load_policy import Policy
    from rewardflow.policy.starting_weights import StartingWeights
    from rewardflow.train.device_trainer import DeviceTrainer
    from rewardflow.train.megatron.layout import Layout
    from rewardflow.train.memory_phase import MemoryPhase

# Megatron starts the reduction of a gradient while the next one is computed, and counts on the order it queued them in.
_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


class MegatronBackend(TrainerBackend):
    """The ranks of a replica hold parts of one model, and are given the same samples."""

    trains_policy_model = False
    needs_process_group = True
    keeps_gradients = True

    def check_one_process(self, settings: RunSettings) -> None:
        if settings.trainer.megatron.num_ranks > 1:
            raise InvalidInput(
                "a run in one process has one rank, so all sizes of trainer.megatron must be 1, "
                f"got {settings.trainer.megatron.num_ranks} ranks for one model; more are for runtime.kind=ray"
            )
        _check_installed()

    def rehearse(self, settings: RunSettings, policy: Policy, thread: DeviceThread) -> None:
        from rewardflow.train.megatron.shape import ModelShape, check_fits

        check_fits(ModelShape.of(policy.model.config), settings.trainer.megatron)

    def rehearse_memory(self, settings: RunSettings) -> tuple[MemoryPhase, ...]:
        """Returns nothing: Megatron's kernels and communication do not run without data."""
        return ()

    def held_by_rank(self, settings: RunSettings, policy: Policy, whole: HeldBytes) -> HeldBytes:
        from rewardflow.train.megatron.held_memory import held_by_rank

        return held_by_rank(settings, policy.model.config)

    def describe_ranks(self, settings: RunSettings) -> str:
        sizes, ranks = settings.trainer.megatron, settings.runtime.ranks
        return (
            f"{ranks} ranks: tensor {sizes.tensor_parallel} x pipeline {sizes.pipeline_parallel} x "
            f"context {sizes.context_parallel} x data {ranks // sizes.num_ranks}"
        )

    @contextmanager
    def open_alone(
        self, settings: RunSettings, policy: Policy, thread: DeviceThread, device: torch.device
    ) -> Iterator[DeviceTrainer]:
        """The policy stays a module of transformers, which generates; publishing copies the trainer's weights to it."""
        from rewardflow.policy.starting_weights import StartingWeights

        with _single_rank(settings.trainer.megatron, device) as layout:
            yield _make_trainer(settings, StartingWeights.of(policy), layout, thread)

    def prepare_rank(self) -> None:
        _check_installed()
        os.environ.setdefault(_CONNECTIONS, "1")

    @contextmanager
    def open_rank(
        self,
        settings: RunSettings,
        policy: Policy | None,
        thread: DeviceThread,
        device: torch.device,
        group: dist.ProcessGroup | None,
    ) -> Iterator[DeviceTrainer]:
        """Reads the weights from their folder if there is no policy in this process."""
        from rewardflow.policy.starting_weights import StartingWeights
        from rewardflow.train.megatron.layout import entered_layout

        if policy is None:
            starting = StartingWeights.read(settings.policy, seed=settings.seed)
        else:
            starting = StartingWeights.of(policy)
        with entered_layout(settings.trainer.megatron, device) as layout:
            yield _make_trainer(settings, starting, layout, thread)


def _check_installed() -> None:
    # The name `megatron` is a namespace that other packages share, and that any folder of that name would make.
    if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.core") is None:
        raise InvalidInput(f"trainer.backend=megatron needs megatron-core: {install_command('megatron')}")


@contextmanager
def _single_rank(settings: MegatronSettings, device: torch.device) -> Iterator[Layout]:
    """Enters a process group of one rank, on the thread that trains."""
    import torch.distributed as dist

    from rewardflow.train.megatron.layout import entered_layout

    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    store = dist.HashStore()  # type: ignore[attr-defined]  # torch documents it, and does not list it
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        with entered_layout(settings, device) as layout:
            yield layout
    finally:
        dist.destroy_process_group()


def _make_trainer(
    settings: RunSettings, starting: StartingWeights, layout: Layout, thread: DeviceThread
) -> DeviceTrainer:
    from rewardflow.train.device_trainer import arguments_of
    from rewardflow.train.megatron.trainer import MegatronTrainer

    return MegatronTrainer(
        starting.policy.model.config,
        starting.source,
        **arguments_of(settings, thread),
        layout=layout,
        reference=starting.source if settings.algorithm.needs_reference else None,
        recompute=bool(settings.policy.gradient_checkpointing),
    )


BACKEND = MegatronBackend()
