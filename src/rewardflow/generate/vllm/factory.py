"""Makes vLLM engines, which run in processes of their own and hold weights of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from rewardflow.errors import InvalidInput
from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.records import Sampling
from rewardflow.generate.engines import EngineFactory, NamedTensors, OpenSender, Routing
from rewardflow.generate.vllm.direct_weights import open_direct_sender
from rewardflow.generate.vllm.engine import VllmEngine
from rewardflow.generate.vllm.starting import SHARED_SHARE
from rewardflow.policy.load_policy import Policy
from rewardflow.settings.run_settings import GenerationSettings, RunSettings, VllmSettings

_LANES = 8  # when one of these is done, an eighth of the room is free
_ROOM_FACTOR = 2  # as many again as are decoded together, so that none of these places is empty for long


class VllmFactory:
    """Its engines take requests at any time, so they have several calls at once."""

    uses_policy_model = False

    def make(
        self,
        settings: RunSettings,
        policy: Policy,
        thread: DeviceThread,
        *,
        device: torch.device,
        samplings: Sequence[Sampling],
        weights: Callable[[], NamedTensors] | None = None,
        is_fed: bool = False,
        engines_here: int = 1,
    ) -> VllmEngine:
        _check_device(settings.vllm, device)
        return VllmEngine(
            policy,
            settings.generation,
            settings.vllm,
            samplings=samplings,
            thread=thread,
            dtype=getattr(torch, settings.engine_dtype),
            is_colocated=settings.schedule.placement == "colocated",
            weights=weights,
            is_fed=is_fed,
            engines_here=engines_here,
        )

    def routing(self, settings: GenerationSettings) -> Routing:
        return Routing(lanes=_LANES, room=_ROOM_FACTOR * settings.max_sequences)

    def devices_per_engine(self, settings: RunSettings) -> int:
        return settings.vllm.tensor_parallel

    def reserved_share(self, settings: RunSettings) -> float | None:
        return settings.vllm.memory_share or SHARED_SHARE

    def sleeps(self, settings: RunSettings) -> bool:
        return settings.vllm.sleep

    def without_devices(self, settings: RunSettings) -> RunSettings:
        return replace(settings, vllm=VllmSettings())

    def direct_sending(self, settings: RunSettings) -> OpenSender | None:
        return open_direct_sender if settings.vllm.transfer == "nccl" else None


def _check_device(vllm: VllmSettings, device: torch.device) -> None:
    if device.type == "cpu" and vllm.transfer in ("ipc", "nccl"):
        raise InvalidInput(f"vllm.transfer={vllm.transfer} needs a GPU, got trainer.device={device}")
    if device.type == "cpu" and vllm.sleep:
        raise InvalidInput(f"vllm.sleep gives a GPU's memory back, got trainer.device={device}")


FACTORY: EngineFactory = VllmFactory()
