"""Makes vLLM engines, which run in processes of their own and hold weights of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from rewardflow.errors import InvalidInput
from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.records import Sampling
from rewardflow.generate.engine_memory import EngineMemory, key_value_bytes
from rewardflow.generate.engines import EngineFactory, NamedTensors, OpenSender, Routing
from rewardflow.generate.samplings import samplings_of_run
from rewardflow.generate.vllm.direct_weights import open_direct_sender
from rewardflow.generate.vllm.engine import VllmEngine
from rewardflow.generate.vllm.saved_form import SavedForm
from rewardflow.generate.vllm.senders import device_buffer_bytes
from rewardflow.generate.vllm.starting import cache_bytes, longest_sequence, memory_share
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

    def memory(self, settings: RunSettings, policy: Policy, device_bytes: int) -> EngineMemory:
        """vLLM refuses to start if the longest sequence does not fit into its cache."""
        vllm, dtype = settings.vllm, getattr(torch, settings.engine_dtype)
        size = SavedForm(policy.model, dtype).size
        weights = size.num_bytes // vllm.tensor_parallel
        is_colocated = settings.schedule.placement == "colocated"
        reserved = int(memory_share(vllm, is_colocated=is_colocated) * device_bytes)
        if vllm.kv_cache_gb is not None:  # then vLLM ignores the share
            reserved = weights + cache_bytes(vllm.kv_cache_gb)
        num_tokens = longest_sequence(settings.generation, samplings_of_run(settings))
        config = policy.model.config.get_text_config()
        return EngineMemory(
            reserved=reserved,
            weights=weights,
            key_values=key_value_bytes(config, num_tokens, dtype.itemsize, num_parts=vllm.tensor_parallel),
            buffers=device_buffer_bytes(vllm.transfer, size) if is_colocated else 0,
            sleeps=vllm.sleep,
        )

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
