"""The loop's trainer and generator on actors: a trainer of many ranks, a generator of many engines.

Always true: the samples of a micro-batch are split over the replicas by their tokens alone, so the same run gives every
rank the same samples; n ranks make the update that one would, up to rounding. A message holds a batch, never a sample.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rewardflow.errors import CheckpointError, ClusterError
from rewardflow.flow.records import GroupRequest, MicroBatch, Sample, UpdateReport, num_tokens
from rewardflow.generate.engines import Routing
from rewardflow.runtime.on_ray.actor_group import ActorGroup
from rewardflow.runtime.on_ray.balance import split_evenly
from rewardflow.runtime.on_ray.rank_actor import RankPlace
from rewardflow.runtime.on_ray.routing import routed
from rewardflow.runtime.on_ray.weight_buckets import BucketNote
from rewardflow.types import EMPTY, Reward, Rollout


class RankTrainer:
    """A `CheckpointedTrainer` and a `ValueEstimator`. `places` are those of the ranks, in order."""

    def __init__(self, ranks: ActorGroup, places: Sequence[RankPlace]) -> None:
        self._ranks = ranks
        self.places = tuple(places)
        self._num_replicas = places[0].num_replicas
        self.peak_memory_bytes: int | None = None  # of the rank that has used most

    @contextlib.asynccontextmanager
    async def step(self, number: int) -> AsyncIterator[None]:
        """Tells the ranks nothing of a step that fails: the run ends, and its ranks with it."""
        await self._ranks.all("begin_step", lambda _: (number,))
        yield
        peaks = [peak for peak in await self._ranks.all("end_step") if peak is not None]
        self.peak_memory_bytes = max(peaks, default=None)

    async def log_probs(self, rollouts: Sequence[Rollout], of: Literal["policy", "reference"]) -> Sequence[object]:
        return await self._collect("log_probs", rollouts, of)

    async def values(self, rollouts: Sequence[Rollout]) -> Sequence[object]:
        return await self._collect("values", rollouts)

    async def forward_backward(self, batch: MicroBatch) -> None:
        shares = self._split([sample.rollout for sample in batch.samples])
        batches = [
            replace(batch, samples=tuple(_bare_sample(batch.samples[place]) for place in share)) for share in shares
        ]
        given = self._once_each(batches)
        await self._ranks.all("forward_backward", lambda rank: (given[self.places[rank].replica],))

    async def optim_step(self, token_share: float = 1.0) -> UpdateReport:
        reports: list[UpdateReport] = await self._ranks.all("optim_step", lambda rank: (token_share,))
        return reports[0]

    async def take(self) -> TakenOnRanks:
        """Each rank keeps its own part, and later writes it into a directory that all ranks see."""
        await self._ranks.all("take")
        return TakenOnRanks(self._ranks)

    async def put_back(self, folder: Path) -> None:
        await self._ranks.all("put_back", lambda _: (folder.absolute(),))

    async def _collect(self, method: str, rollouts: Sequence[Rollout], *others: Any) -> list[object]:
        """Returns what the replicas found, in the order of the rollouts."""
        shares = self._split(rollouts)
        parts = [[_bare(rollouts[place]) for place in share] for share in shares]
        given = self._once_each(parts)
        answers = await self._ranks.all(method, lambda rank: (given[self.places[rank].replica], *others))
        found: dict[int, object] = {}
        for place, answer in zip(self.places, answers, strict=True):
            if place.speaks:
                found.update(zip(shares[place.replica], answer, strict=True))
        return [found[number] for number in range(len(rollouts))]

    def _once_each(self, parts: Sequence[Any]) -> Sequence[Any]:
        """Puts what several ranks of a replica get into Ray's object store once, not with every call."""
        if self._num_replicas == len(self.places):
            return parts
        import ray

        return [ray.put(part) for part in parts]

    def _split(self, rollouts: Sequence[Rollout]) -> list[list[int]]:
        return split_evenly([num_tokens(rollout) for rollout in rollouts], self._num_replicas)


class EngineGenerator:
    """A `Generator` on the engines of actors, which have the trainer's weights or pull them when they publish.

    `sleeps`: the engines give their memory back while nobody generates. They wake together, because each needs the
    weights that are spread over all ranks.
    """

    def __init__(self, engines: ActorGroup, routing: Routing, *, sleeps: bool = False) -> None:
        self._engines = engines
        self._routing = routing
        self._sleeps = sleeps

    async def generate(self, requests: Sequence[GroupRequest]) -> AsyncGenerator[Rollout]:
        """Closing it stops all engines."""
        async with (
            self._awake() if self._sleeps else contextlib.nullcontext(),
            contextlib.aclosing(routed(requests, len(self._engines), self._stream, self._routing)) as rollouts,
        ):
            async for rollout in rollouts:
                yield rollout

    @contextlib.asynccontextmanager
    async def _awake(self) -> AsyncIterator[None]:
        await self._engines.all("begin_generating")
        try:
            yield
        except Exception:
            raise  # the run ends; another call to an engine that failed would hide why
        except BaseException:  # the caller has seen enough
            await self._engines.all("end_generating")
            raise
        await self._engines.all("end_generating")

    def _stream(self, number: int, part: Sequence[GroupRequest]) -> AsyncGenerator[list[Rollout]]:
        return self._engines.stream(number, "generate", part)

    async def publish(self, version: int) -> None:
        await self._engines.all("publish", partial(_same, version))


class SeparateGenerator(EngineGenerator):
    """On engines in actors of their own; the weights travel through Ray's object store, a few at a time."""

    def __init__(self, engines: ActorGroup, routing: Routing, ranks: ActorGroup) -> None:
        super().__init__(engines, routing)
        self._ranks = ranks

    async def publish(self, version: int) -> None:
        """Asks all ranks for bucket after bucket, and passes references to the engines, until the last.

        The ranks gather one bucket while the engines receive the one before.
        """
        is_first, is_last = True, False
        received: Sequence[Any] = ()
        while not is_last:
            answers = self._ranks.ask("next_weights", partial(_same, is_first), num_returns=2)
            notes: list[BucketNote] = await self._ranks.answered([note for _, note in answers])
            await self._wait_for(received)
            buckets = [bucket for (bucket, _), note in zip(answers, notes, strict=True) if not note.is_empty]
            received = [self._engines.ask("receive", partial(_same, bucket)) for bucket in buckets]
            is_first, is_last = False, all(note.is_last for note in notes)
        await self._wait_for(received)
        await super().publish(version)

    async def _wait_for(self, received: Sequence[Any]) -> None:
        for answers in received:
            await self._engines.answered(answers)


class DirectGenerator(EngineGenerator):
    """On engines in actors of their own; the first rank sends the weights to the engines' workers itself."""

    def __init__(self, engines: ActorGroup, routing: Routing, ranks: ActorGroup) -> None:
        super().__init__(engines, routing)
        self._ranks = ranks

    async def publish(self, version: int) -> None:
        await self._ranks.all("send_directly")
        await super().publish(version)


def _same(argument: Any, _: int) -> tuple[Any]:
    """Gives every actor the same argument. Ray replaces a reference by its value on the way."""
    return (argument,)


@dataclass(frozen=True, slots=True)
class TakenOnRanks:
    """The parts of a checkpoint that the ranks keep in their memory."""

    ranks: ActorGroup

    def write(self, folder: Path) -> None:
        try:
            self.ranks.wait_for(self.ranks.ask("write", lambda _: (folder.absolute(),)))
        except ClusterError as error:
            raise CheckpointError(str(error)) from error


def _bare(rollout: Rollout) -> Rollout:
    """Drops the texts, which a trainer does not look at."""
    return replace(rollout, prompt="", messages=(), response="", ground_truth=None, extra_info=EMPTY)


def _bare_sample(sample: Sample) -> Sample:
    value = sample.reward.value
    reward = Reward(kind=sample.reward.kind, error="") if value is None else Reward(value=value)
    return replace(sample, rollout=_bare(sample.rollout), reward=reward)
