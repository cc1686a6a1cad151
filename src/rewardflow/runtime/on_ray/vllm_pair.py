"""A vLLM engine in an actor, for training and for measuring.

Always true: both ask one engine, so what was published to one is published to the other. The weights are a learner's of
the same process, which are fetched when a version is published, or come from elsewhere, in pieces, before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.protocols import Generator
from rewardflow.runtime.local import make_vllm
from rewardflow.runtime.on_ray.engine_pair import Engines, Purpose
from rewardflow.runtime.validation_setup import generation_of
from rewardflow.settings.run_settings import RunSettings

if TYPE_CHECKING:
    from torch import Tensor

    from rewardflow.generate.responses import EngineStatistics
    from rewardflow.generate.vllm.engine import VllmEngine
    from rewardflow.generate.vllm.senders import DirectCall
    from rewardflow.generate.vllm.weight_source import NamedTensors


class VllmPair(Engines):
    """On one engine, with one set of weights."""

    def __init__(self, engine: VllmEngine, settings: RunSettings) -> None:
        self._engine = engine
        asked: dict[Purpose, Generator] = {"training": engine}
        if (measuring := settings.validation) is not None:
            asked["validation"] = engine.sharing(generation_of(settings, measuring), seed=measuring.seed)
        super().__init__(asked)

    @classmethod
    async def started(
        cls, settings: RunSettings, thread: DeviceThread, weights: Callable[[], NamedTensors] | None = None
    ) -> Self:
        """To be ended with its process. `weights` gives the learner's, on the thread; else they come from elsewhere."""
        from rewardflow.policy.load_policy import outline_policy

        policy = await thread.run(lambda: outline_policy(settings.policy))
        engine = make_vllm(settings, policy, thread, weights=weights, is_fed=weights is None)
        await engine.__aenter__()
        return cls(engine, settings)

    def statistics(self) -> EngineStatistics:
        return self._engine.statistics()

    async def receive(self, weights: Mapping[str, Tensor]) -> None:
        await self._engine.receive(weights)

    async def direct(self, call: DirectCall, info: dict[str, Any]) -> None:
        await self._engine.direct(call, info)
