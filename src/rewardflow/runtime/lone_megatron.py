"""Megatron's trainer in a run of one process: a world with one rank.

Always true: the world is left as it was entered, also where the run fails; the policy of the run stays a model of
transformers, which generates, and Megatron has weights of its own, which publishing copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rewardflow.config.tree import MegatronSettings, RunSettings
from rewardflow.device_thread import DeviceThread

if TYPE_CHECKING:
    import torch

    from rewardflow.policy.loading import Policy
    from rewardflow.train.megatron.layout import Layout
    from rewardflow.train.megatron.trainer import MegatronTrainer


@contextmanager
def alone_in_the_world(settings: MegatronSettings, device: torch.device) -> Iterator[Layout]:
    """On the thread that trains."""
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


def make_megatron_trainer(
    settings: RunSettings, policy: Policy, layout: Layout, thread: DeviceThread
) -> MegatronTrainer:
    from rewardflow.train.megatron.trainer import MegatronTrainer
    from rewardflow.train.megatron.weights import weights_of

    source = weights_of(policy.model)
    return MegatronTrainer(
        policy.model.config,
        source,
        layout=layout,
        trainer=settings.trainer,
        algorithm=settings.algorithm,
        uses_old=settings.schedule.needs_old_log_probs,
        temperature=settings.generation.temperature,
        max_response_tokens=settings.generation.max_response_tokens,
        total_steps=settings.steps,
        thread=thread,
        reference=source if settings.algorithm.needs_reference else None,
        recompute=settings.policy.gradient_checkpointing,
    )
