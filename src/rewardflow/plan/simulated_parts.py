"""A generator, a trainer and a reward that make nothing and take the time that a plan says.

Always true: they keep every promise of the seams and take their time from the running loop; what a rollout's call takes
depends on the seed and on the rollout's place alone, so that every schedule waits for the same calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from rewardflow.errors import ServiceError
from rewardflow.flow.records import GroupRequest, MicroBatch, UpdateReport
from rewardflow.plan.settings import DeviceSettings, PlanSettings
from rewardflow.reward.latency import interpolate
from rewardflow.reward.simulated_service import SimulatedService
from rewardflow.types import Rollout

# Rollouts that end within a 512th of the generation end together: a timer for each would double the simulation's work.
_WAVES: Final = 512
# One token each, so that tokens count rollouts: a micro-batch of so many tokens is one of so many rollouts.
_TOKEN: Final = array("l", [0])
_MASK: Final = array("b", [1])
_LOG_PROB: Final = array("f", [0.0])
_BURST_S: Final = 1.0  # of its rate, a service lets through at once what it allows in so long


@dataclass(slots=True)
class SimulatedGenerator:
    device: DeviceSettings
    version: int = 0

    async def generate(self, requests: Sequence[GroupRequest]) -> AsyncGenerator[Rollout]:
        version, loop = self.version, asyncio.get_running_loop()
        places = [(request, index) for request in requests for index in range(request.group_size)]
        began_s, first = loop.time(), 0
        num_waves = min(_WAVES, len(places))
        for wave in range(1, num_waves + 1):
            share = interpolate(self.device.rollouts_end, wave / num_waves)
            end_s = began_s + self.device.generation_s * share
            await asyncio.sleep(max(0.0, end_s - loop.time()))
            last = len(places) * wave // num_waves
            for request, index in places[first:last]:
                yield _rollout(request, index, version)
            first = last
        await asyncio.sleep(max(0.0, began_s + self.device.generation_s - loop.time()))

    async def publish(self, version: int) -> None:
        await asyncio.sleep(self.device.publish_s)
        self.version = version


def _rollout(request: GroupRequest, index: int, version: int) -> Rollout:
    return Rollout(
        group_id=request.group_id,
        index=index,
        group_size=request.group_size,
        step=request.step,
        response="",
        token_ids=_TOKEN,
        response_mask=_MASK,
        log_probs=_LOG_PROB,
        policy_version=version,
    )


class SimulatedTrainer:
    """Each rollout of a step takes its share of what the step takes."""

    def __init__(self, device: DeviceSettings, *, calls_per_step: int) -> None:
        self._log_probs_s = device.log_probs_s / calls_per_step
        self._update_s = device.update_s / calls_per_step
        self._optimizer_s = device.optimizer_s

    @contextlib.asynccontextmanager
    async def step(self, number: int) -> AsyncIterator[None]:
        yield

    async def log_probs(self, rollouts: Sequence[Rollout], of: Literal["policy", "reference"]) -> Sequence[object]:
        await asyncio.sleep(self._log_probs_s * len(rollouts))
        return [0.0] * len(rollouts)

    async def forward_backward(self, batch: MicroBatch) -> None:
        await asyncio.sleep(self._update_s * len(batch.samples))

    async def optim_step(self) -> UpdateReport:
        await asyncio.sleep(self._optimizer_s)
        return UpdateReport(num_sequences=0, num_tokens=0, grad_norm=0.0, lr=0.0)


@dataclass(slots=True)
class CallLog:
    """When calls started and ended, in seconds; those that failed too."""

    started_s: array[float] = field(default_factory=lambda: array("d"))
    ended_s: array[float] = field(default_factory=lambda: array("d"))

    def flown_s(self, since_s: float, until_s: float) -> float:
        """All that one slot alone would have been busy with in that time."""
        overlaps = (min(end, until_s) - max(start, since_s) for start, end in self._pairs())
        return sum(overlap for overlap in overlaps if overlap > 0)

    def in_flight(self, since_s: float, until_s: float) -> list[tuple[float, int]]:
        """How many calls are out from each moment on at which that changes."""
        changes = [(start, 1) for start, end in self._pairs() if end > since_s and start < until_s]
        changes += [(end, -1) for start, end in self._pairs() if end > since_s and start < until_s]
        levels: list[tuple[float, int]] = []
        level = 0
        for at_s, change in sorted(changes):
            level += change
            levels.append((at_s, level))
        return levels

    def _pairs(self) -> zip[tuple[float, float]]:
        return zip(self.started_s, self.ended_s, strict=True)


class SimulatedReward:
    """A reward whose calls go to a simulated service."""

    def __init__(self, settings: PlanSettings) -> None:
        service = settings.service
        # Slots are the agent's to keep, so that the service needs none of its own.
        burst = 1 if service.rpm is None else max(1, round(service.rpm / 60.0 * _BURST_S))
        self._service = SimulatedService(rpm=service.rpm, burst=burst)
        self._latency = service.latency_function()
        self._failures = service.failures
        self._tokens = service.tokens
        self._seed = settings.seed
        self._lucks: Mapping[int, Sequence[float]] = {}
        self._calls_per_step = settings.calls_per_step
        self._responses = settings.responses
        self._later_lucks = random.Random(f"{settings.seed} again")
        self._tried: set[tuple[str, int]] = set()
        self.calls = CallLog()

    async def compute_score(self, rollout: Rollout) -> float:
        loop = asyncio.get_running_loop()
        latency_s, fails = self._drawn(rollout)
        started_s = loop.time()
        try:
            await self._service.call(latency_s)
        finally:
            self.calls.started_s.append(started_s)
            self.calls.ended_s.append(loop.time())
        if fails:
            raise ServiceError("the simulated service failed", status=503)
        return 1.0

    def estimate_tokens(self, rollout: Rollout) -> int:
        return self._tokens

    def _drawn(self, rollout: Rollout) -> tuple[float, bool]:
        """By its place for a rollout's first call; one after another for retries and hedges."""
        place = (rollout.group_id, rollout.index)
        if place in self._tried:
            luck, fate = self._later_lucks.random(), self._later_lucks.random()
        else:
            self._tried.add(place)
            lucks = self._lucks_of(rollout.step)
            first = (int(rollout.group_id) * self._responses + rollout.index) % self._calls_per_step
            luck, fate = lucks[first], lucks[self._calls_per_step + first]
        return self._latency(luck), fate < self._failures

    def _lucks_of(self, step: int) -> Sequence[float]:
        if step not in self._lucks:
            rng = random.Random(f"{self._seed} {step}")
            self._lucks = {**self._lucks, step: [rng.random() for _ in range(2 * self._calls_per_step)]}
        return self._lucks[step]
