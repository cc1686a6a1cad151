"""Makes engines on transformers, which generate with the policy's own module."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.records import Sampling
from rewardflow.generate.engines import EngineFactory, NamedTensors, Routing
from rewardflow.generate.hf.engine import HFEngine
from rewardflow.policy.load_policy import Policy
from rewardflow.settings.run_settings import GenerationSettings, RunSettings


class HFFactory:
    """Its engines run on any device, and each of them can be fed."""

    uses_policy_model = True

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
    ) -> HFEngine:
        named = settings.trainer.autocast
        autocast = None if named in (None, "float32") else getattr(torch, named)  # weights in float32 need no cast
        return HFEngine(
            policy, settings.generation, samplings=samplings, thread=thread, autocast=autocast, weights=weights
        )

    def routing(self, settings: GenerationSettings) -> Routing:
        return Routing()

    def devices_per_engine(self, settings: RunSettings) -> int:
        return 1

    def memory(self, settings: RunSettings, policy: Policy, device_bytes: int) -> None:
        return None

    def sleeps(self, settings: RunSettings) -> bool:
        return False

    def without_devices(self, settings: RunSettings) -> RunSettings:
        return settings

    def direct_sending(self, settings: RunSettings) -> None:
        return None


FACTORY: EngineFactory = HFFactory()
