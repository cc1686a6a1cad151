"""Writes events to the run directory: every event, and one aggregate for each step.

Always true: a step's aggregate is written soon after the step has no pending group, and at closing. The last one
counts, and includes the cost of all sessions of a resumed run. Each source has its own aggregates. While events come,
the load of every account is written every two seconds. One recorder at a time writes to a directory; a second one is
refused. A change in an account belongs to no step, so it is counted with
the step whose call ends next: the end of a call is what changes limits and breakers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Protocol

from rewardflow.clock import hold
from rewardflow.errors import InvalidInput
from rewardflow.observe.events import (
    AccountLoad,
    BreakerChanged,
    CallEnded,
    Event,
    EventSink,
    GroupDelivered,
    LimitChanged,
    OutageChanged,
    VerdictReached,
)
from rewardflow.observe.line_file import LineFileStatistics
from rewardflow.observe.process_lock import LockHeld, ProcessLock
from rewardflow.observe.run_directory import AGENT_LOCK_FILE, RunDirectory, read_steps
from rewardflow.observe.step_totals import StepTotals
from rewardflow.reward.groups.pending_group import PendingGroup
from rewardflow.types import Reward, Rollout, ScoredGroup

_WRITE_EVERY_S = 1.0
_LOAD_EVERY_S = 2.0

_StepAndSource = tuple[int, str]  # step and source


class StepRecorder(EventSink, Protocol):
    """An event sink that is also told when a step has no pending group."""

    def step_idle(self, step: int, source: str) -> None: ...


@dataclass(frozen=True, slots=True)
class SinkOnly:
    """A recorder for a caller's own sink."""

    sink: EventSink

    def emit(self, event: Event) -> None:
        self.sink.emit(event)

    def step_idle(self, step: int, source: str) -> None:
        """Does nothing: only a run directory holds aggregates of steps."""


class Recorder:
    """The agent's event sink. `loads` says what each account does now."""

    def __init__(
        self,
        path: str | PathLike[str],
        loop: asyncio.AbstractEventLoop,
        *,
        loads: Callable[[], Iterable[AccountLoad]] | None = None,
    ) -> None:
        self._loop = loop
        self._loads = loads
        self._load_timer: asyncio.TimerHandle | None = None
        self._idle: set[_StepAndSource] = set()
        self._unwritten: set[_StepAndSource] = set()  # changed since their last aggregate was written
        self._account_changes: list[LimitChanged | BreakerChanged | OutageChanged] = []
        self._timer: asyncio.TimerHandle | None = None
        directory = RunDirectory.at(path)
        with contextlib.ExitStack() as undo:
            self._lock = undo.enter_context(_sole_recorder(directory.path))
            steps = read_steps(path)
            self._events = undo.enter_context(directory.open_events())
            self._steps = directory.open_steps()
            undo.pop_all()
        self._earlier = {(step, source): line for step, by in steps.items() for source, line in by.items()}
        self._totals: dict[_StepAndSource, StepTotals] = {}

    def emit(self, event: Event) -> None:
        self._events.emit(event)
        if self._load_timer is None and self._loads is not None:
            self._load_timer = self._loop.call_later(_LOAD_EVERY_S, self._write_loads, self._loads)
        match event:
            case CallEnded():
                self._step(event.step, event.source).call_ended(event)
                self._count_account_changes(event.step, event.source)
            case VerdictReached():
                self._step(event.step, event.source).verdict(event)
            case GroupDelivered():
                self._step(event.step, event.source).group(event)
            case LimitChanged() | BreakerChanged() | OutageChanged():
                self._account_changes.append(event)

    def _write_loads(self, loads: Callable[[], Iterable[AccountLoad]]) -> None:
        self._load_timer = None
        for load in loads():
            self._events.emit(load)

    def _count_account_changes(self, step: int, source: str) -> None:
        for change in self._account_changes:
            self._step(step, source).account_changed(change)
        self._account_changes.clear()

    def step_idle(self, step: int, source: str) -> None:
        """Notes that the step has no pending group. This may happen often, so aggregates are written with a delay."""
        self._idle.add((step, source))
        if self._timer is None:
            self._timer = self._loop.call_later(_WRITE_EVERY_S, self._write_idle)

    def _write_idle(self) -> None:
        self._timer = None
        for step, source in sorted(self._idle):
            self._steps.append(self._step(step, source).to_json())
        self._unwritten -= self._idle
        self._idle.clear()

    async def aclose(self) -> None:
        """Writes the remaining aggregates and waits until everything is on disk."""
        for timer in (self._timer, self._load_timer):
            if timer is not None:
                timer.cancel()
        if self._totals:
            self._count_account_changes(*max(self._totals))
        self._idle |= self._unwritten
        self._write_idle()
        with hold(self._loop):
            await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._lock, contextlib.closing(self._steps):
            self._events.close()

    def statistics(self) -> LineFileStatistics:
        return self._events.statistics()

    def _step(self, step: int, source: str) -> StepTotals:
        self._unwritten.add((step, source))
        totals = self._totals.get((step, source))
        if totals is None:
            totals = self._totals[step, source] = StepTotals(step, source)
            if (step, source) in self._earlier:
                totals.carry_over(self._earlier[step, source])
        return totals


def _sole_recorder(run_dir: Path) -> ProcessLock:
    try:
        return ProcessLock.acquire(run_dir / AGENT_LOCK_FILE)
    except LockHeld as held:
        raise InvalidInput(
            f"a run directory must be used by one agent at a time, got {run_dir}, which is in use by {held.holder}"
        ) from held


def record_group(sink: EventSink, pending: PendingGroup, group: ScoredGroup, *, at_s: float) -> None:
    """Records a delivered group: first its verdicts, then the group."""
    source = pending.ticket.source
    for rollout, reward in zip(group.rollouts, group.rewards, strict=True):
        waited_s = pending.note(rollout).waited_s
        sink.emit(verdict_event(rollout, reward, at_s=at_s, waited_s=waited_s, source=source))
    sink.emit(
        GroupDelivered(
            at_s=at_s,
            step=group.step,
            group_id=group.group_id,
            num_rollouts=len(group.rollouts),
            num_failed=group.num_failed,
            first_submitted_s=pending.submitted_s,
            source=source,
        )
    )


def verdict_event(rollout: Rollout, reward: Reward, *, at_s: float, waited_s: float, source: str) -> VerdictReached:
    return VerdictReached.of(
        reward,
        step=rollout.step,
        group_id=rollout.group_id,
        index=rollout.index,
        at_s=at_s,
        waited_s=waited_s,
        source=source,
    )
