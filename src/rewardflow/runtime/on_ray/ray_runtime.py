"""The runtime on a Ray cluster: this process runs the loop, actors compute.

Always true: a cluster that is too small is refused before anything is loaded. A run ends what it started and nothing
else: actors and their placement group when the run ends, a cluster only if it was started for this run.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.util
import logging
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rewardflow.checkpoint.manifest import Checkpoint
from rewardflow.data.prompt_set import PromptSet
from rewardflow.errors import InvalidInput
from rewardflow.extras import install_command
from rewardflow.flow.protocols import Generator
from rewardflow.flow.records import Prompt
from rewardflow.generate.engines import engine_factory
from rewardflow.runtime.local import rehearse, rehearse_validation
from rewardflow.runtime.memory_plan import complete_for
from rewardflow.runtime.on_ray.actor_group import ActorGroup
from rewardflow.runtime.on_ray.cluster import joined, private_cluster
from rewardflow.runtime.on_ray.engine_actor import EngineActor
from rewardflow.runtime.on_ray.placement import (
    Need,
    alive_nodes,
    check_room,
    neighbours_together,
    nodes_of,
    reserved,
)
from rewardflow.runtime.on_ray.rank_actor import Rank, RankPlace
from rewardflow.runtime.on_ray.remote_parts import (
    DirectGenerator,
    EngineGenerator,
    RankTrainer,
    SeparateGenerator,
)
from rewardflow.runtime.open_run import Machinery
from rewardflow.settings.device_defaults import DeviceKind
from rewardflow.settings.run_settings import RunSettings, RuntimeSettings
from rewardflow.train.backends import backend_of

logger = logging.getLogger(__name__)


class RayRuntime:
    """A `Runtime`. It calls `tell` with what the start waits for."""

    def __init__(self, settings: RunSettings, *, tell: Callable[[str], None] | None = None) -> None:
        self._settings = settings
        self._runtime = settings.runtime
        self._tell = tell or logger.info
        self._stack = contextlib.ExitStack()
        self._fits: Callable[[Prompt], bool] | None = None

    @property
    def _is_colocated(self) -> bool:
        return self._settings.schedule.placement == "colocated"

    @property
    def _num_engines(self) -> int:
        """The number of engines that are separate actors."""
        return 0 if self._is_colocated else self._runtime.generators

    async def __aenter__(self) -> Self:
        _check_installed()
        address = _address_of(self._runtime)
        try:
            if address is None:
                self._tell("starting Ray on this machine")
                self._stack.enter_context(private_cluster())
            else:
                self._tell(f"joining Ray at {address}")
                self._stack.enter_context(joined(address))
            self.check_room()
        except BaseException:
            self._stack.close()
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def check_room(self) -> None:
        """Raises if the cluster that this process has joined is too small."""
        is_strict = self._runtime.spread == "strict_spread"
        check_room(self._need(), alive_nodes(), is_strictly_spread=is_strict)

    @property
    def device_kind(self) -> DeviceKind:
        """The kind of device that a rank has in the cluster that this process has joined."""
        has_gpus = self._need().gpus > 0 and self._settings.trainer.device != "cpu"
        return "accelerator" if has_gpus else "cpu"

    async def rehearse(self, prompt_set: PromptSet, validation_set: PromptSet | None) -> tuple[Prompt, ...]:
        """Rehearses on the CPU: each rank checks its own device when it loads."""
        return await asyncio.to_thread(self._rehearse, prompt_set, validation_set)

    def _rehearse(self, prompt_set: PromptSet, validation_set: PromptSet | None) -> tuple[Prompt, ...]:
        from rewardflow.generate.prompt_encoder import PromptEncoder

        settings = rehearsed_here(self._settings)
        policy = rehearse(settings, prompt_set)
        encoder = PromptEncoder(policy.tokenizer, self._settings.generation)
        self._fits = lambda prompt: bool(encoder.fit([prompt]).kept)
        return rehearse_validation(settings, policy, validation_set)

    async def load(self) -> Machinery:
        ranks, engines = await self._start_actors()
        self._settings = await self._completed(ranks)
        settings = _for_actors(self._settings)
        has_groups = len(ranks) > 1 or backend_of(settings).needs_process_group
        meeting_point = await ranks.actors[0].meeting_point.remote() if has_groups else None
        self._tell(f"waiting for {_count(len(ranks), 'rank')} to load {settings.policy.model}")
        places = await ranks.all("open", lambda _: (settings, meeting_point, self._is_colocated))
        _note_places(ranks, places)
        if len(engines):
            self._tell(f"waiting for {_count(len(engines), 'generator')} to load {settings.policy.model}")
            _note_places(engines, await engines.all("open", lambda _: (settings,)))
        await self._check_run_dir_is_shared(ranks, places)
        machinery = self._machinery(ranks, engines, places)
        factory = engine_factory(settings)
        if len(engines) and not factory.uses_policy_model:  # they have loaded nothing
            if factory.direct_sending(settings) is not None:
                await ranks.all("meet_engines", lambda _: (settings, engines.actors))
            await machinery.generator.publish(0)
        return machinery

    async def _completed(self, ranks: ActorGroup) -> RunSettings:
        """Returns the settings with what they leave to the ranks' devices, fitted to the one with the least memory."""
        least: int | None = None
        if self.device_kind == "accelerator":
            settings = _for_actors(self._settings)
            told = await ranks.all("device_memory", lambda _: (settings,))
            least = None if None in told else min(told)
        return (await asyncio.to_thread(complete_for, self._settings, self.device_kind, least)).settings

    async def rehearse_evaluation(self, prompt_set: PromptSet) -> tuple[Prompt, ...]:
        return await self.rehearse(prompt_set, prompt_set)

    async def load_evaluation(self, checkpoint: Checkpoint | None, version: int) -> Generator:
        """Loads ranks and generators as if the run resumed from the checkpoint: what can train it can measure it."""
        machinery = await self.load()
        if checkpoint is not None:
            await machinery.trainer.put_back(checkpoint.path)
            await machinery.generator.publish(version)
        return machinery.generator

    def _machinery(self, ranks: ActorGroup, engines: ActorGroup, places: list[RankPlace]) -> Machinery:
        settings = self._settings
        trainer = RankTrainer(ranks, places)
        assert self._fits is not None
        return Machinery(
            generator=self._generator(ranks, engines),
            trainer=trainer,
            critic=trainer if settings.algorithm.kind.critic else None,
            fits=self._fits,
            peak_memory_bytes=lambda: trainer.peak_memory_bytes,
            num_replicas=places[0].num_replicas,
            settings=settings,
        )

    def _generator(self, ranks: ActorGroup, engines: ActorGroup) -> EngineGenerator:
        factory = engine_factory(self._settings)
        routing = factory.routing(self._settings.generation)
        if self._is_colocated:
            return EngineGenerator(ranks, routing, sleeps=factory.sleeps(self._settings))
        is_direct = factory.direct_sending(self._settings) is not None
        return (DirectGenerator if is_direct else SeparateGenerator)(engines, routing, ranks)

    def _need(self) -> Need:
        import ray

        count = self._runtime.ranks + self._num_engines
        return Need.of(
            self._runtime,
            count=count,
            total=ray.cluster_resources(),
            num_wide=self._num_engines,
            width=engine_factory(self._settings).devices_per_engine(self._settings),
            why=backend_of(self._settings).describe_ranks(self._settings),
        )

    async def _start_actors(self) -> tuple[ActorGroup, ActorGroup]:
        from ray.util.placement_group import remove_placement_group

        need = self._need()
        group = await reserved(need, self._runtime, self._tell)
        self._stack.callback(remove_placement_group, group)
        num_ranks = self._runtime.ranks
        nodes = nodes_of(group)
        places = neighbours_together({place: nodes[place] for place in range(num_ranks)})
        ranks = [_actor(Rank, need, group, places[number], (number, num_ranks)) for number in range(num_ranks)]
        rank_group = ActorGroup("rank", ranks)
        self._stack.callback(rank_group.kill)
        engines = [
            _actor(EngineActor, need, group, num_ranks + number, (number, self._num_engines))
            for number in range(self._num_engines)
        ]
        engine_group = ActorGroup("generator", engines)
        self._stack.callback(engine_group.kill)
        return rank_group, engine_group

    async def _check_run_dir_is_shared(self, ranks: ActorGroup, places: list[RankPlace]) -> None:
        """Raises if a rank does not see `run_dir`, where it must write its part of a checkpoint."""
        if self._settings.run_dir is None:
            return
        file = await asyncio.to_thread(_made_file, Path(self._settings.run_dir))
        try:
            seen = await ranks.all("sees", lambda _: (file,))
        finally:
            file.unlink()
        if not all(seen):
            nodes = ", ".join(sorted({place.node for place, sees in zip(places, seen, strict=True) if not sees}))
            raise InvalidInput(
                "run_dir must be on a file system that every node sees, because ranks write checkpoints there, got "
                f"{self._settings.run_dir}, which {nodes} does not see"
            )


def check_cluster(settings: RunSettings) -> DeviceKind | None:
    """Raises if the cluster that a run would join has no room for it. Starts no cluster.

    Returns the kind of device of its ranks; None: the run would start the cluster, on this machine.
    """
    _check_installed()
    address = _address_of(settings.runtime)
    if address is None:
        return None
    with joined(address):
        runtime = RayRuntime(settings)
        runtime.check_room()
        return runtime.device_kind


def rehearsed_here(settings: RunSettings) -> RunSettings:
    """Returns the settings for a rehearsal in this process, which may have none of the ranks' devices."""
    trainer = dataclasses.replace(settings.trainer, device="cpu")
    return engine_factory(settings).without_devices(dataclasses.replace(settings, trainer=trainer))


def _check_installed() -> None:
    if importlib.util.find_spec("ray") is None:
        raise InvalidInput(f"runtime.kind=ray needs Ray, which is not installed: {install_command('ray')}")


def _address_of(runtime: RuntimeSettings) -> str | None:
    """Returns the address of the cluster to join; None: start one for the run."""
    return runtime.address or os.environ.get("RAY_ADDRESS") or None


def _actor(cls: type[Any], need: Need, group: Any, place: int, arguments: tuple[Any, ...]) -> Any:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    strategy = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=place)
    has = need.bundles[place]
    options = {
        "num_cpus": has.get("CPU", 0.0),
        "num_gpus": has.get("GPU", 0.0),
        "scheduling_strategy": strategy,
        "max_restarts": 0,
    }
    return ray.remote(cls).options(**options).remote(*arguments)


def _for_actors(settings: RunSettings) -> RunSettings:
    """Returns the settings without the reward, which may hold keys, and with an absolute path of the model."""
    model = Path(settings.policy.model).expanduser()
    policy = dataclasses.replace(settings.policy, model=str(model.absolute())) if model.exists() else settings.policy
    return dataclasses.replace(settings, reward="elsewhere:reward", reward_kwargs={}, limits={}, policy=policy)


def _made_file(folder: Path) -> Path:
    file = folder.absolute() / f".seen-{uuid.uuid4().hex}"
    file.touch()
    return file


def _note_places(actors: ActorGroup, places: list[RankPlace]) -> None:
    actors.places[:] = [f" (node {place.node}, process {place.pid})" for place in places]


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'s' if number != 1 else ''}"
