"""Runs the loop and records the durations of its parts.

Always true: the measured loop is the real one; a wrapper records the generator without changing it, and the device
itself reports what it was used for.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from rewardflow.bench.critical_path import CallTimes, MicroBatchTime, MiniBatchTimes, StepTimes
from rewardflow.flow.flow_parts import FlowParts
from rewardflow.flow.micro_batches import plan_micro_batches
from rewardflow.flow.protocols import Generator
from rewardflow.flow.records import GroupRequest
from rewardflow.flow.reports import StepReport
from rewardflow.flow.run import Flow
from rewardflow.flow.schedule import Schedule
from rewardflow.observe.events import DeviceWorked, EventList
from rewardflow.types import Rollout

DelayOf = Callable[[Rollout], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRun:
    reports: tuple[StepReport, ...]
    steps: tuple[StepTimes, ...]


async def observe(parts: FlowParts, *, steps: int, delay_of: DelayOf) -> ObservedRun:
    """Trains with these parts; `delay_of` returns how long a rollout's reward call takes."""
    generator = _ObservedGenerator(parts.generator)
    sink = EventList()
    reports: list[StepReport] = []
    await Flow(replace(parts, generator=generator), on_step=reports.append, sink=sink).run(steps=steps)
    worked: defaultdict[tuple[int, str], list[DeviceWorked]] = defaultdict(list)
    for event in sink.of(DeviceWorked):
        worked[event.step, event.work].append(event)
    return ObservedRun(
        reports=tuple(reports),
        steps=tuple(_step_times(step, worked, generator.ended, parts.schedule, delay_of) for step in range(steps)),
    )


class _ObservedGenerator:
    """Records when each rollout is delivered."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self.ended: defaultdict[int, list[tuple[float, Rollout]]] = defaultdict(list)

    async def generate(self, requests: Sequence[GroupRequest]) -> AsyncGenerator[Rollout]:
        loop = asyncio.get_running_loop()
        async with aclosing(self._generator.generate(requests)) as rollouts:
            async for rollout in rollouts:
                self.ended[rollout.step].append((loop.time(), rollout))
                yield rollout

    async def publish(self, version: int) -> None:
        await self._generator.publish(version)


def _step_times(
    step: int,
    worked: defaultdict[tuple[int, str], list[DeviceWorked]],
    ended: defaultdict[int, list[tuple[float, Rollout]]],
    schedule: Schedule,
    delay_of: DelayOf,
) -> StepTimes:
    (generation,) = worked[step, "generate"]
    return StepTimes(
        generate_s=_duration_s(generation),
        calls=tuple(
            CallTimes(
                group=int(rollout.group_id),
                index=rollout.index,
                rollout_ended_s=at_s - generation.started_s,
                delay_s=delay_of(rollout),
            )
            for at_s, rollout in ended[step]
        ),
        log_probs_s=sum(map(_duration_s, worked[step, "log_probs"])),
        mini_batches=tuple(_mini_batches(worked[step, "update"], schedule)),
        publish_s=sum(map(_duration_s, worked[step, "publish"])),
    )


def _mini_batches(worked: Sequence[DeviceWorked], schedule: Schedule) -> list[MiniBatchTimes]:
    """Splits the step into mini-batches of equally many micro-batches and an update; no group was dropped here."""
    num_leases = len(worked) // schedule.mini_batches
    num_micro_batches = num_leases - 1
    counts = plan_micro_batches(schedule.groups_per_mini_batch, num_tokens=num_micro_batches, max_tokens=1)
    return [
        MiniBatchTimes(
            micro_batches=tuple(
                MicroBatchTime(num_groups=count, duration_s=_duration_s(event))
                for count, event in zip(counts, events, strict=True)
            ),
            update_s=_duration_s(update),
        )
        for first in range(0, len(worked), num_leases)
        for *events, update in (worked[first : first + num_leases],)
    ]


def _duration_s(event: DeviceWorked) -> float:
    return event.at_s - event.started_s
