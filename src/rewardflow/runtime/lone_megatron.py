"""Megatron's trainer in a run of one process: a world with one rank.

Always true: the world is left as it was entered, also where the run fails; the policy of the run stays a model of
transformers, which generates, and Megatron has weights of its own, which publishing copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rewardflow.settings.run_settings import MegatronSettings

if TYPE_CHECKING:
    import torch

    from rewardflow.train.megatron.layout import Layout


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
