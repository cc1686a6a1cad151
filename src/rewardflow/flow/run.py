"""The one loop: generate, judge, train and publish, overlapped as far as the schedule allows.

Always true: every admitted group leaves exactly once: trained, dropped with a reason, or given back unjudged; step s is
trained on rollouts of version max(0, s - max_staleness), whatever the delays; nothing is generated for a step that will
not be trained; leaving the loop, by its end, an error or a cancellation, leaves no task and no call behind.

A step is admitted when the version allows it. Then one task generates it and one takes its verdicts in, while the loop
itself trains step after step. Only the version flows back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rewardflow.events import EventSink
from rewardflow.flow.generation import generate_step
from rewardflow.flow.open_step import OpenStep
from rewardflow.flow.parts import Devices, Parts
from rewardflow.flow.records import Prompt
from rewardflow.flow.reports import StepReport
from rewardflow.flow.step_record import StepRecord
from rewardflow.flow.training import StepTraining


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowStatistics:
    """What the loop does at this moment."""

    step: int
    version: int
    num_steps: int
    num_ready: int  # groups of the step that could be trained now
    num_untrained: int  # groups of the step that are not trained yet
    work: str | None  # of the trainer's device
    waits_for: str
    verdicts_out: int


class Flow:
    """`await Flow(parts).run(steps=100)`, once, inside the agent's block."""

    def __init__(
        self,
        parts: Parts,
        *,
        on_step: Callable[[StepReport], None] | None = None,
        sink: EventSink | None = None,
    ) -> None:
        self._parts = parts
        self._schedule = parts.schedule
        self._devices = Devices.of(parts.schedule, sink)
        self._on_step = on_step
        self._open: dict[int, OpenStep] = {}
        self._version = 0
        self._num_steps = 0
        self._tasks = asyncio.TaskGroup()

    async def run(self, *, steps: int, first_step: int = 0) -> None:
        """Train the steps from `first_step` up to but not including `steps`."""
        self._version, self._num_steps = first_step, steps
        async with self._tasks:
            for step in range(first_step, first_step + self._schedule.max_steps_open):
                self._admit(step)
            for step in range(first_step, steps):
                await self._train(self._open[step])

    def _admit(self, step: int) -> None:
        """Let a step be generated. Its prompts are taken now, so that their order is that of the steps."""
        if step >= self._num_steps:
            return
        prompts = self._parts.prompts.take(self._schedule.groups_per_step + self._schedule.refill)
        # Numbers leave room for every reserve that a step may get, and so do not depend on which step needed them.
        most = self._schedule.groups_per_step + self._schedule.refill * (1 + self._schedule.refill_rounds)
        open_step = OpenStep(step, step * most, self._schedule, self._parts.agent, self._devices.trainer.usage)
        self._open[step] = open_step
        self._devices.generator.announce("generate")
        self._tasks.create_task(self._fill(open_step, prompts))

    async def _fill(self, open_step: OpenStep, prompts: Sequence[Prompt]) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(open_step.receive())
            await generate_step(self._parts, self._devices, open_step, prompts)

    async def _train(self, open_step: OpenStep) -> None:
        record = StepRecord(open_step.step, self._devices.trainer.usage)
        with contextlib.ExitStack() as updating:
            await self._wait_until_generated(open_step)
            async with self._parts.trainer.step(open_step.step):
                await StepTraining(self._parts, self._devices, open_step, record).run(updating)
            await self._publish(open_step.step)
            self._close(open_step)
            self._admit(open_step.step + self._schedule.max_steps_open)
        if self._on_step is not None:
            self._on_step(record.report(open_step, self._version))

    async def _wait_until_generated(self, open_step: OpenStep) -> None:
        """On a shared device everything that is admitted is generated first."""
        with self._devices.trainer.usage.waiting_for("generation"):
            for awaited in list(self._open.values()) if self._devices.are_one else [open_step]:
                await awaited.is_generated.wait()

    async def _publish(self, step: int) -> None:
        async with self._devices.trainer.lease("publish", step), contextlib.AsyncExitStack() as stack:
            if not self._devices.are_one:
                await stack.enter_async_context(self._devices.generator.lease("publish", step))
            await self._parts.generator.publish(step + 1)
            self._version = step + 1

    def _close(self, open_step: OpenStep) -> None:
        self._parts.prompts.give_back(open_step.unused_prompts())
        open_step.ticket.seal()
        del self._open[open_step.step]

    def statistics(self) -> FlowStatistics:
        step = min(self._version, self._num_steps - 1)
        current = self._open.get(step)
        usage = self._devices.trainer.usage
        return FlowStatistics(
            step=step,
            version=self._version,
            num_steps=self._num_steps,
            num_ready=0 if current is None else current.num_ready,
            num_untrained=0 if current is None else current.num_untaken,
            work=usage.work,
            waits_for=usage.cause,
            verdicts_out=usage.verdicts_out,
        )
