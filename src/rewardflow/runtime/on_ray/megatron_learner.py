"""Megatron's trainer as one rank of several holds it, and the weights it starts from.

Always true: a rank trains weights of its own, which are its part of the model; the policy of transformers that they
came from stays as it was, so whoever generates here may have it. A rank that does not generate reads from a folder of
safetensors only what it is asked for, one weight at a time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewardflow.flow.device_thread import DeviceThread
from rewardflow.runtime.megatron_trainer import check_megatron_installed, make_megatron_trainer
from rewardflow.runtime.run_state import WeightsHere
from rewardflow.settings.run_settings import PolicySettings, RunSettings

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rewardflow.checkpoint.snapshot import TakenWeights
    from rewardflow.policy.load_policy import Policy
    from rewardflow.train.megatron.weight_conversion import WeightSource

# Megatron starts the reduction of a gradient while the next one is computed, and counts on the order it queued them in.
_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


def prepare_megatron() -> None:
    """Before anything is loaded, in a process that will be a rank."""
    check_megatron_installed()
    os.environ.setdefault(_CONNECTIONS, "1")


@dataclass(frozen=True, slots=True)
class StartingWeights:
    """A model that will be trained: its configuration of transformers, and its weights by name."""

    config: Any
    source: WeightSource

    @classmethod
    def of(cls, policy: Policy) -> StartingWeights:
        from rewardflow.train.megatron.weight_conversion import weights_of

        return cls(policy.model.config, weights_of(policy.model))

    @classmethod
    def read(cls, settings: PolicySettings, *, seed: int) -> StartingWeights:
        """Those that `of` would give of a policy that was loaded, without one where that is possible."""
        import torch

        from rewardflow.policy.load_policy import load_policy, outline_policy
        from rewardflow.train.megatron.weight_conversion import weights_in

        folder = Path(settings.model).expanduser()
        if not _holds_plain_weights(folder):
            return cls.of(load_policy(settings, seed=seed))
        stored, dtype = weights_in(folder), getattr(torch, settings.dtype)
        return cls(outline_policy(settings).model.config, lambda name: stored(name).to(dtype))


def _holds_plain_weights(folder: Path) -> bool:
    """Not such as transformers would put together from several sources."""
    return any(folder.glob("model*.safetensors")) and not (folder / "adapter_config.json").exists()


class MegatronLearner:
    """The ranks of a replica have the same samples, and parts of one model. All of torch.distributed's ranks enter."""

    critic = None

    def __init__(
        self, settings: RunSettings, starting: StartingWeights, thread: DeviceThread, device: torch.device
    ) -> None:
        from rewardflow.train.megatron.layout import entered_layout

        self._entered = contextlib.ExitStack()  # it is left with the process, which is killed
        layout = self._entered.enter_context(entered_layout(settings.trainer.megatron, device))
        self.trainer = make_megatron_trainer(settings, starting.config, starting.source, layout, thread)
        self.replica = layout.data.rank
        self.num_replicas = layout.data.size
        self.speaks = layout.pipeline.is_last and layout.tensor.rank == layout.context.rank == 0
        self.hands_on = layout.is_leader
        self._is_first_holder = layout.holders.rank == 0
        self._kept = WeightsHere(trainer=self.trainer, thread=thread)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        return self.trainer.all_weights()

    def weights_to_hand_on(self) -> Iterator[tuple[str, Tensor]]:
        """Of this rank's pipeline stage alone, gathered over the tensor axis by the first replica."""
        return self.trainer.stage_weights() if self._is_first_holder else iter(())

    async def take(self) -> TakenWeights:
        return await self._kept.take()

    async def put_back(self, folder: Path) -> None:
        await self._kept.put_back(folder)
