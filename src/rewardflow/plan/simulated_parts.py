"""A simulated generator, trainer and reward: they do no work, and take the time that a plan sets.

Always true: they follow the protocols of the flow and take their time from the running event loop. The latency of a
rollout's first call depends only on the seed and on the rollout's position, so that every schedule waits for the same
calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, Literal, NamedTuple

from rewardflow.errors import ServiceError
from rewardflow.flow.records import GroupRequest, MicroBatch, UpdateReport
from rewardflow.plan.settings import DeviceSettings, PlanSettings
from rewardflow.reward.latency import interpolate
from rewardflow.reward.simulated_service import SimulatedService
from rewardflow.types import Rollout

# Rollouts that end within a 512th of the generation end together: one timer each would double the simulation's work.
_WAVES: Final = 512
# Each rollout has one token, so that a micro-batch of n tokens holds n rollouts.
_TOKEN: Final = array("l", [0])
_MASK: Final = array("b", [1])
_LOG_PROB: Final = array("f", [0.0])
_MAX_STRATA: Final = 16
_LEAST_IN_STRATUM: Final = 64
_BURST_S: Final = 1.0  # a service accepts a burst of as many calls as its rate allows in this time


@dataclass(slots=True)
class SimulatedGenerator:
    """Yields empty rollouts at the times that `device.rollouts_end` sets."""

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
        position=request.number,
        response="",
        token_ids=_TOKEN,
        response_mask=_MASK,
        log_probs=_LOG_PROB,
        policy_version=version,
    )


class SimulatedTrainer:
    """A trainer in which each rollout takes an equal share of the step's time."""

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

    async def optim_step(self, token_share: float = 1.0) -> UpdateReport:
        await asyncio.sleep(self._optimizer_s)
        return UpdateReport(num_sequences=0, num_tokens=0, grad_norm=0.0, lr=0.0)


@dataclass(slots=True)
class CallLog:
    """Start and end times of all calls, in seconds, including failed calls."""

    started_s: array[float] = field(default_factory=lambda: array("d"))
    ended_s: array[float] = field(default_factory=lambda: array("d"))

    def flown_s(self, since_s: float, until_s: float) -> float:
        """Returns the summed duration of all calls within this time."""
        overlaps = (min(end, until_s) - max(start, since_s) for start, end in self._pairs())
        return sum(overlap for overlap in overlaps if overlap > 0)

    def in_flight(self, since_s: float, until_s: float) -> list[tuple[float, int]]:
        """Returns each change of the number of calls in flight: its time and the new number."""
        within = [(start, end) for start, end in self._pairs() if end > since_s and start < until_s]
        changes = [(end, -1) for _, end in within]  # first: of equal times, calls end before others start
        changes += [(start, 1) for start, _ in within]
        changes.sort(key=itemgetter(0))
        levels: list[tuple[float, int]] = []
        level = 0
        for at_s, change in changes:
            level += change
            levels.append((at_s, level))
        return levels

    def _pairs(self) -> zip[tuple[float, float]]:
        return zip(self.started_s, self.ended_s, strict=True)


class SimulatedReward:
    """A reward whose calls go to a simulated service."""

    def __init__(self, settings: PlanSettings) -> None:
        service = settings.service
        # The agent limits the slots, so the service does not.
        burst = 1 if service.rpm is None else max(1, round(service.rpm / 60.0 * _BURST_S))
        self._service = SimulatedService(rpm=service.rpm, burst=burst)
        self._latency = service.latency_function()
        self._failures = service.failures
        self._tokens = service.tokens
        self._seed = settings.seed
        self._draws: dict[int, Draws] = {}
        self._calls_per_step = settings.calls_per_step
        self._responses = settings.responses
        self._later_draws = random.Random(f"{settings.seed} again")
        self._tried: set[tuple[str, int]] = set()
        self.calls = CallLog()

    async def compute_score(self, rollout: Rollout) -> float:
        loop = asyncio.get_running_loop()
        latency_s, fails = self._draw(rollout)
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

    def latency_s(self, rollout: Rollout) -> float:
        """Returns the latency of a rollout's first call, without making one."""
        return self._latency(self._draws_of(rollout.step).latency[self._place(rollout)])

    def _draw(self, rollout: Rollout) -> tuple[float, bool]:
        """Draws latency and failure: by position for a rollout's first call, in sequence for retries and hedges."""
        place = (rollout.group_id, rollout.index)
        if place in self._tried:
            latency, failure = self._later_draws.random(), self._later_draws.random()
        else:
            self._tried.add(place)
            draws, first = self._draws_of(rollout.step), self._place(rollout)
            latency, failure = draws.latency[first], draws.failure[first]
        return self._latency(latency), failure < self._failures

    def _place(self, rollout: Rollout) -> int:
        return (int(rollout.group_id) * self._responses + rollout.index) % self._calls_per_step

    def _draws_of(self, step: int) -> Draws:
        if step not in self._draws:
            self._draws[step] = draw_step(f"{self._seed} {step}", self._calls_per_step)
        return self._draws[step]


class Draws(NamedTuple):
    """Random numbers in [0, 1) for the first calls of a step: one for the latency and one for the failure of each."""

    latency: Sequence[float]
    failure: Sequence[float]


@functools.lru_cache(maxsize=64)  # all simulations of a plan draw the same numbers
def draw_step(seed: str, num_calls: int) -> Draws:
    """Draws the numbers of a step.

    Each stratum of the latencies, such as the slowest sixteenth, gets its exact share of a large step's calls. So steps
    differ less by chance, and the mean of a few is the mean of many. The slowest calls stay random: a stratum has at
    least 64 calls, and a small step has one stratum.
    """
    rng = random.Random(seed)
    latency, failure = (array("d", (rng.random() for _ in range(num_calls))) for _ in range(2))
    num_strata = min(_MAX_STRATA, num_calls // _LEAST_IN_STRATUM)
    if num_strata > 1:
        strata = [place % num_strata for place in range(num_calls)]
        rng.shuffle(strata)
        latency = array("d", ((stratum + draw) / num_strata for stratum, draw in zip(strata, latency, strict=True)))
    return Draws(latency, failure)
