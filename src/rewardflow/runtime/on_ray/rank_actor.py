"""The actor that trains: one rank, and an engine where generation shares its device.

Always true: callers call all ranks, in the same order; a rank computes on one thread. A single FSDP2 rank generates
with the very weights it trains. One of several ranks, whose weights are spread, and a rank of Megatron, which has them
in another form, keep a whole copy for their engine, which publishing fills weight by weight: no rank ever has more than
that copy and one whole weight.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rewardflow.errors import CheckpointError
from rewardflow.flow.device_thread import DeviceThread
from rewardflow.flow.records import MicroBatch, UpdateReport
from rewardflow.generate.engines import DirectSender, Engine, EngineActors, engine_factory
from rewardflow.runtime.local import device_of, load, make_engine, prepared_device
from rewardflow.runtime.memory_estimate import device_memory
from rewardflow.runtime.on_ray.actor_failures import telling
from rewardflow.runtime.on_ray.generating_actor import GeneratingActor
from rewardflow.runtime.on_ray.listen_address import listener_on, stay_on
from rewardflow.runtime.on_ray.weight_buckets import BucketNote, WeightBucket, next_bucket
from rewardflow.runtime.peak_memory import peak_memory_bytes
from rewardflow.settings.run_settings import RunSettings
from rewardflow.train.backends import backend_of
from rewardflow.types import Rollout

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    import torch.distributed as dist
    from torch import Tensor

    from rewardflow.checkpoint.snapshot import TakenWeights
    from rewardflow.train.device_trainer import DeviceTrainer


@dataclass(frozen=True, slots=True)
class MeetingPoint:
    """The address of the first rank's torch.distributed store, where the ranks find each other."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Which samples a rank is given, whether its results are used, and where it runs."""

    replica: int
    num_replicas: int
    speaks: bool = True
    node: str
    pid: int


class Rank(GeneratingActor):
    """Answers calls one by one, in order, except that it writes a checkpoint while others go on."""

    def __init__(self, number: int, num_ranks: int) -> None:
        self._number = number
        self._num_ranks = num_ranks
        self._thread = DeviceThread("device")
        self._thread.__enter__()  # it ends with the process, which is killed
        self._store: Any = None  # of torch.distributed, in the first rank
        self._saving_group: dist.ProcessGroup | None = None
        self._device: Any = None
        self._weight_dtype: torch.dtype | None = None  # of engines
        self._trainer: DeviceTrainer | None = None
        self._entered = contextlib.ExitStack()  # is never left: the process is killed
        self._step: AbstractAsyncContextManager[None] | None = None
        self._taken: TakenWeights | None = None
        self._sending: Iterator[tuple[str, Tensor]] | None = None
        self._direct: DirectSender | None = None

    # -- the start ---------------------------------------------------------------------------------------------------

    @telling
    async def meeting_point(self) -> MeetingPoint:
        """Opens the store; called on the first rank only."""
        import ray
        import torch.distributed as dist

        host = ray.util.get_node_ip_address()
        listener = listener_on(host)  # the store's own would be on all addresses
        port = listener.getsockname()[1]
        self._store = dist.TCPStore(  # type: ignore[attr-defined]  # documented, but not in its __all__
            host,
            port,
            self._num_ranks,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        return MeetingPoint(host, port)

    @telling
    async def device_memory(self, settings: RunSettings) -> int | None:
        """Returns the bytes that this rank's device has; None: unknown."""
        return await self._thread.run(lambda: device_memory(device_of(settings)))

    @telling
    async def open(self, settings: RunSettings, meeting_point: MeetingPoint | None, generates: bool) -> RankPlace:
        """Loads the policy, and connects with the other ranks if there are any."""
        engine = await self._thread.run(lambda: self._open(settings, meeting_point, generates))
        if engine is not None:
            self._engine = await engine.__aenter__()  # it is left with the process
        import ray

        role = self._opened.role
        return RankPlace(
            replica=role.replica,
            num_replicas=role.num_replicas,
            speaks=role.speaks,
            node=ray.util.get_node_ip_address(),
            pid=os.getpid(),
        )

    def _open(self, settings: RunSettings, meeting_point: MeetingPoint | None, generates: bool) -> Engine | None:
        import torch

        from rewardflow.policy.load_policy import outline_policy

        backend = backend_of(settings)
        backend.prepare_rank()
        self._device = prepared_device(settings)
        self._weight_dtype = getattr(torch, settings.engine_dtype)
        uses_model = generates and engine_factory(settings).uses_policy_model
        group = None if meeting_point is None else self._meet(meeting_point)
        is_spread = backend.trains_policy_model and group is not None  # then each rank reads its own part
        policy = load(settings) if uses_model or (backend.trains_policy_model and not is_spread) else None
        own = outline_policy(settings.policy) if generates and not uses_model else policy
        if uses_model and group is not None:
            assert policy is not None
            policy.model.requires_grad_(False)
        trainer = backend.open_rank(settings, None if is_spread else policy, self._thread, self._device, group)
        self._trainer = self._entered.enter_context(trainer)
        if not generates:
            return None
        assert own is not None
        has_own_weights = group is not None or not uses_model
        return make_engine(
            settings,
            own,
            self._thread,
            weights=partial(self._opened.weights, self._weight_dtype) if has_own_weights else None,
            engines_here=_ranks_on_this_node(group),
        )

    def _meet(self, meeting_point: MeetingPoint) -> dist.ProcessGroup:
        import ray
        import torch.distributed as dist

        stay_on(ray.util.get_node_ip_address())
        store = self._store or dist.TCPStore(  # type: ignore[attr-defined]
            meeting_point.host, meeting_point.port, self._num_ranks
        )
        device = self._device.type
        backend = "gloo" if device == "cpu" else f"cpu:gloo,{device}:{dist.get_default_backend_for_device(device)}"
        dist.init_process_group(backend, store=store, rank=self._number, world_size=self._num_ranks)
        self._saving_group = dist.new_group(backend="gloo")  # a checkpoint is written while training goes on
        assert dist.group.WORLD is not None
        return dist.group.WORLD

    @property
    def _opened(self) -> DeviceTrainer:
        assert self._trainer is not None, "a rank must be opened first"
        return self._trainer

    @telling
    async def sees(self, file: Path) -> bool:
        return await asyncio.to_thread(file.exists)

    # -- training ----------------------------------------------------------------------------------------------------

    @telling
    async def begin_step(self, number: int) -> None:
        self._step = self._opened.step(number)
        await self._step.__aenter__()

    @telling
    async def end_step(self) -> int | None:
        """Ends the step; returns the most memory that this rank has used so far."""
        assert self._step is not None
        await self._step.__aexit__(None, None, None)
        return peak_memory_bytes(self._device)

    @telling
    async def log_probs(self, rollouts: Sequence[Rollout], of: Literal["policy", "reference"]) -> Sequence[object]:
        """Returns nothing from a rank that does not speak for its replica."""
        found = await self._opened.log_probs(rollouts, of)
        return found if self._opened.role.speaks else ()

    @telling
    async def values(self, rollouts: Sequence[Rollout]) -> Sequence[object]:
        return await self._opened.values(rollouts)

    @telling
    async def forward_backward(self, batch: MicroBatch) -> None:
        await self._opened.forward_backward(batch)

    @telling
    async def optim_step(self, token_share: float = 1.0) -> UpdateReport:
        return await self._opened.optim_step(token_share)

    # -- weights for engines ------------------------------------------------------------------------------------------

    @telling
    async def next_weights(self, is_first: bool) -> tuple[WeightBucket, BucketNote]:
        """Returns the next weights for engines in other actors; empty on ranks that only help to gather."""
        return await self._thread.run(lambda: self._next_weights(is_first))

    def _next_weights(self, is_first: bool) -> tuple[WeightBucket, BucketNote]:
        trainer = self._opened
        if is_first or self._sending is None:
            self._sending = trainer.weights_to_send(self._weight_dtype)
        return next_bucket(self._sending, keeps=trainer.role.sends_weights)

    @telling
    async def meet_engines(self, settings: RunSettings, engines: Sequence[Any]) -> None:
        """Connects this rank with engines in other actors, whose workers it sends weights to."""
        import ray

        def ask_all(call: str, infos: Sequence[dict[str, Any]]) -> None:
            ray.get([one.answer_sender.remote(call, info) for one, info in zip(engines, infos, strict=True)])

        actors = EngineActors(ask_all, len(engines), ray.util.get_node_ip_address())
        weights, rank = partial(self._opened.weights, self._weight_dtype), self._number
        open_sender = engine_factory(settings).direct_sending(settings)
        assert open_sender is not None
        self._direct = await self._thread.run(lambda: open_sender(settings, weights, rank=rank, engines=actors))

    @telling
    async def send_directly(self) -> None:
        assert self._direct is not None
        await self._thread.run(self._direct.send_weights)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    @telling
    async def take(self) -> None:
        self._taken = await self._opened.take()

    @telling
    async def write(self, folder: Path) -> None:
        """Writes what was taken, not on the device's thread, which goes on."""
        taken = self._taken
        if taken is None:
            raise CheckpointError("weights must be taken before they are written, got none")
        await asyncio.to_thread(lambda: taken.write(folder, group=self._saving_group))

    @telling
    async def put_back(self, folder: Path) -> None:
        await self._opened.put_back(folder)


def _ranks_on_this_node(group: dist.ProcessGroup | None) -> int:
    """Returns how many ranks share this machine's memory. All ranks of the group call it together."""
    import ray
    import torch.distributed as dist

    if group is None:
        return 1
    nodes: list[str | None] = [None] * group.size()
    dist.all_gather_object(nodes, ray.util.get_node_ip_address(), group)
    return nodes.count(ray.util.get_node_ip_address())
