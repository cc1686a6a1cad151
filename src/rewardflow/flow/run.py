"""Runs the one loop: generates, judges, trains and publishes, overlapped as far as the schedule allows.

Always true: every admitted group leaves exactly once: trained, dropped with a reason, or given back unjudged; version
max(0, s - max_staleness) generates step s, whatever the delays (a newer one generates later rounds of reserves);
nothing is generated for a step that will not be trained; however the loop ends (normally, by an error or cancelled), it
leaves no task and no call behind.

The loop admits a step when the version allows it. Then one task generates the step and another receives its verdicts,
while the loop itself trains step after step. Only the version flows back. Meanwhile `flow.validation` measures
versions; the loop ends when the last of them is reported.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from rewardflow.flow.device_usage import Cause
from rewardflow.flow.flow_parts import Devices, FlowParts
from rewardflow.flow.generation import finish_restored, generate_step, take_prompts
from rewardflow.flow.open_step import OpenStep
from rewardflow.flow.records import Boundary, JudgedRollout, Prompt, SavedStep
from rewardflow.flow.reports import StepReport
from rewardflow.flow.step_record import StepRecord
from rewardflow.flow.training import StepTraining
from rewardflow.flow.validation.measurement import OnValidation, Validations, ValidationStatistics
from rewardflow.observe.events import EventSink


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowStatistics:
    """What the loop is doing at this moment."""

    step: int
    version: int
    num_steps: int
    num_ready: int  # groups of the step that could be trained now
    num_untrained: int  # groups of the step that are not trained yet
    work: str | None  # of the trainer's device
    waits_for: str
    verdicts_out: int
    validations: tuple[ValidationStatistics, ...] = ()  # the running ones


class Flow:
    """The loop of one run: `await Flow(parts).run(steps=100)`, once, inside the agent's block."""

    def __init__(
        self,
        parts: FlowParts,
        *,
        on_step: Callable[[StepReport], None] | None = None,
        on_rollouts: Callable[[int, Iterable[JudgedRollout]], None] | None = None,
        at_boundary: Callable[[Boundary], Awaitable[None]] | None = None,
        sink: EventSink | None = None,
        on_validation: OnValidation | None = None,
    ) -> None:
        self._parts = parts
        self._schedule = parts.schedule
        self._devices = Devices.of(parts.schedule, sink)
        self._on_step = on_step
        self._on_rollouts = on_rollouts  # called with the step's number and a lazy iterable
        self._at_boundary = at_boundary
        self._open: dict[int, OpenStep] = {}
        self._version = 0
        self._num_steps = 0
        self._record = self._begin_record(0)
        self._tasks = asyncio.TaskGroup()
        self._validations = Validations(
            parts.validation, parts.generator, parts.agent, self._devices.generator, self._tasks, on_validation
        )

    async def run(self, *, steps: int, start: Boundary = Boundary(next_step=0)) -> None:  # noqa: B008  frozen
        """Trains up to but not including step `steps`, from the beginning or from an earlier run's boundary."""
        self._version, self._num_steps = start.next_step, steps
        self._record = self._begin_record(start.next_step)
        try:
            async with self._tasks:
                await self._run_from(start)
        except BaseExceptionGroup as group:
            raise _only_cause(group) from None

    async def _run_from(self, start: Boundary) -> None:
        if start.next_step > 0:
            await self._parts.generator.publish(start.next_step)
        for saved in start.open_steps:
            self._reopen(saved)
        for measured in start.validations:
            self._validations.resume(measured, self._num_steps)
        for step in range(start.next_step, start.next_step + self._schedule.max_steps_open):
            if step not in self._open:
                self._admit(step)
        self._validations.begin_if_due(start.next_step, self._num_steps)
        for step in range(start.next_step, self._num_steps):
            await self._train(self._open[step])
        with self._devices.trainer.usage.waiting_for("validation"):
            await self._validations.wait_until_reported()

    def _admit(self, step: int) -> None:
        """Starts generating a step. Takes its prompts now, so that prompts are in the order of the steps."""
        if step >= self._num_steps:
            return
        open_step = self._make_open(step)
        prompts = take_prompts(self._parts.prompts, self._schedule.groups_per_step + self._schedule.refill)
        self._devices.generator.announce("generate")
        self._tasks.create_task(self._fill(open_step, prompts))

    def _reopen(self, saved: SavedStep) -> None:
        if saved.step < self._num_steps:
            open_step = self._make_open(saved.step)
            open_step.restore(saved)
            self._tasks.create_task(self._go_on_with(open_step))

    def _make_open(self, step: int) -> OpenStep:
        # Group numbers leave room for every reserve that a step may get, so they do not depend on which step used any.
        most = self._schedule.groups_per_step + self._schedule.refill * (1 + self._schedule.refill_rounds)
        open_step = OpenStep(step, step * most, self._schedule, self._parts.agent, self._devices.trainer.usage)
        self._open[step] = open_step
        return open_step

    async def _fill(self, open_step: OpenStep, prompts: Sequence[Prompt]) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(open_step.receive())
            await generate_step(self._parts, self._devices, open_step, prompts)

    async def _go_on_with(self, open_step: OpenStep) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(open_step.receive())
            await finish_restored(self._parts, self._devices, open_step)

    async def _train(self, open_step: OpenStep) -> None:
        with contextlib.ExitStack() as updating:
            await self._wait_until_generated(open_step)
            async with self._parts.trainer.step(open_step.step):
                training = StepTraining(self._parts, self._devices, open_step, self._record)
                await training.run(updating)
            await self._publish(open_step.step)
            self._close(open_step)
            self._report(open_step)
            if self._on_rollouts is not None:
                self._on_rollouts(open_step.step, training.judged())
            await self._tell_boundary()
            self._admit(open_step.step + self._schedule.max_steps_open)
            self._validations.begin_if_due(self._version, self._num_steps)

    async def _wait_until_generated(self, open_step: OpenStep) -> None:
        """Waits for the step; on a shared device also for all admitted steps and this version's validation."""
        with self._devices.trainer.usage.waiting_for("generation"):
            for awaited in list(self._open.values()) if self._devices.are_one else [open_step]:
                await awaited.is_generated.wait()
            if self._devices.are_one:
                await self._validations.wait_until_generated()

    async def _publish(self, step: int) -> None:
        async with contextlib.AsyncExitStack() as stack:
            if not self._devices.are_one:
                cause: Cause = "validation" if self._validations.is_generating else "generation"
                with self._devices.trainer.usage.waiting_for(cause):
                    await stack.enter_async_context(self._devices.generator.lease("publish", step))
            await stack.enter_async_context(self._devices.trainer.lease("publish", step))
            await self._parts.generator.publish(step + 1)
            self._version = step + 1

    async def _tell_boundary(self) -> None:
        if self._at_boundary is not None:
            saved = tuple(open_step.saved() for _, open_step in sorted(self._open.items()))
            measured = self._validations.saved()
            with self._devices.trainer.usage.waiting_for("checkpoint"):
                await self._at_boundary(Boundary(next_step=self._version, open_steps=saved, validations=measured))

    def _report(self, open_step: OpenStep) -> None:
        """Reports before the boundary, so that a checkpoint saves only reported steps. Starts the next record."""
        report = self._record.report(open_step, self._version)
        self._record = self._begin_record(self._version)
        if self._on_step is not None:
            self._on_step(report)

    def _begin_record(self, step: int) -> StepRecord:
        return StepRecord(step, self._devices, self._parts.agent)

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
            validations=self._validations.statistics(),
        )


def _only_cause(error: BaseException) -> BaseException:
    """Unwraps an error that several task groups wrapped, if it was a single one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
