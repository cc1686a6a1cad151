"""The actor that only generates: an engine that the trainer's ranks feed with weights.

Always true: between two publishings its weights do not change.
"""

from __future__ import annotations

import os

from rewardflow.flow.device_thread import DeviceThread
from rewardflow.generate.engines import Engine, engine_factory
from rewardflow.runtime.local import load, make_engine
from rewardflow.runtime.on_ray.actor_failures import telling
from rewardflow.runtime.on_ray.generating_actor import GeneratingActor
from rewardflow.runtime.on_ray.rank_actor import RankPlace
from rewardflow.settings.run_settings import RunSettings


class EngineActor(GeneratingActor):
    """Answers calls one by one, in order."""

    def __init__(self, number: int, num_engines: int) -> None:
        self._number = number
        self._num_engines = num_engines
        self._thread = DeviceThread("generator")
        self._thread.__enter__()  # it ends with the process, which is killed

    @telling
    async def open(self, settings: RunSettings) -> RankPlace:
        """Starts the engine. One that uses the policy's model has the trainer's first weights: both load the same."""
        import ray

        engine = await self._thread.run(lambda: self._make_engine(settings))
        self._engine = await engine.__aenter__()  # it is left with the process
        return RankPlace(
            replica=self._number,
            num_replicas=self._num_engines,
            node=ray.util.get_node_ip_address(),
            pid=os.getpid(),
        )

    def _make_engine(self, settings: RunSettings) -> Engine:
        from rewardflow.policy.load_policy import outline_policy

        uses_model = engine_factory(settings).uses_policy_model
        policy = load(settings) if uses_model else outline_policy(settings.policy)
        policy.model.requires_grad_(False)
        # Ray may put all engines on one node.
        return make_engine(settings, policy, self._thread, is_fed=True, engines_here=self._num_engines)
