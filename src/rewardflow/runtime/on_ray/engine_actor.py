"""What runs in an actor that only generates: a whole policy of its own and engines on it, or vLLM, which has one.

Always true: between two publishings its weights do not change.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rewardflow.flow.device_thread import DeviceThread
from rewardflow.runtime.local import load
from rewardflow.runtime.on_ray.actor_failures import telling
from rewardflow.runtime.on_ray.engine_pair import EnginePair
from rewardflow.runtime.on_ray.generating import GeneratingActor
from rewardflow.runtime.on_ray.rank_actor import RankPlace
from rewardflow.runtime.on_ray.vllm_pair import VllmPair
from rewardflow.runtime.on_ray.weight_buckets import WeightBucket
from rewardflow.settings.run_settings import RunSettings

if TYPE_CHECKING:
    from rewardflow.generate.responses import EngineStatistics
    from rewardflow.generate.vllm.senders import DirectCall
    from rewardflow.train.weight_sync import WeightCopier


class EngineActor(GeneratingActor):
    """Calls come one by one, in order."""

    def __init__(self, number: int, num_engines: int) -> None:
        self._number = number
        self._num_engines = num_engines
        self._thread = DeviceThread("generator")
        self._thread.__enter__()  # it ends with the process, which is killed
        self._weights: WeightCopier | None = None  # where vLLM does not hold them

    @telling
    async def open(self, settings: RunSettings) -> RankPlace:
        """With the weights that the trainer starts with, because both load the same; vLLM waits to be given them."""
        import ray

        if settings.generation.engine == "vllm":
            self._engines = await VllmPair.started(settings, self._thread)
        else:
            self._engines = await self._thread.run(lambda: self._load(settings))
        return RankPlace(
            replica=self._number,
            num_replicas=self._num_engines,
            node=ray.util.get_node_ip_address(),
            pid=os.getpid(),
        )

    def _load(self, settings: RunSettings) -> EnginePair:
        from rewardflow.train.weight_sync import WeightCopier

        policy = load(settings)
        policy.model.requires_grad_(False)
        self._weights = WeightCopier(policy.model)
        return EnginePair(settings, policy, self._thread)

    @telling
    async def receive(self, bucket: WeightBucket) -> None:
        if isinstance(self._engines, VllmPair):
            await self._engines.receive(bucket.weights)
        else:
            await self._thread.run(lambda: self._put(bucket))

    def _put(self, bucket: WeightBucket) -> None:
        assert self._weights is not None
        for name, weight in bucket.weights.items():
            self._weights.put(name, weight)

    @telling
    async def direct(self, call: DirectCall, info: dict[str, Any]) -> None:
        """Asked by a rank that sends to vLLM's workers itself."""
        assert isinstance(self._engines, VllmPair)
        await self._engines.direct(call, info)

    @telling
    async def statistics(self) -> EngineStatistics:
        assert self._engines is not None
        return self._engines.statistics()
