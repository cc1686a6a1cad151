"""Megatron's trainer as the settings of a run describe it, wherever its ranks are.

Always true: the trainer has weights of its own; what it was given to start with is not kept.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from rewardflow.errors import InvalidInput
from rewardflow.flow.device_thread import DeviceThread
from rewardflow.settings.run_settings import RunSettings

if TYPE_CHECKING:
    from rewardflow.train.megatron.layout import Layout
    from rewardflow.train.megatron.trainer import MegatronTrainer
    from rewardflow.train.megatron.weight_conversion import WeightSource


def check_megatron_installed() -> None:
    # The name `megatron` is a namespace that other packages share, and that any folder of that name would make.
    if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.core") is None:
        raise InvalidInput("trainer.backend=megatron needs megatron-core: pip install 'rewardflow[megatron]'")


def make_megatron_trainer(
    settings: RunSettings, config: Any, source: WeightSource, layout: Layout, thread: DeviceThread
) -> MegatronTrainer:
    """`config` is the model's, of transformers; `source` its weights. On the thread, of every rank."""
    from rewardflow.train.device_trainer import arguments_of
    from rewardflow.train.megatron.trainer import MegatronTrainer

    return MegatronTrainer(
        config,
        source,
        **arguments_of(settings, thread),
        layout=layout,
        reference=source if settings.algorithm.needs_reference else None,
        recompute=settings.policy.gradient_checkpointing,
    )
