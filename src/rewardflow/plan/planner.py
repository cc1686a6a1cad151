"""Simulates every schedule and recommends one, for `rewardflow plan`.

Always true: a plan depends only on its settings, not on the number of processes that compute it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import logging
import multiprocessing
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rewardflow.plan.advice import Gain, recommended, sentence, with_more
from rewardflow.plan.floors import Binding, Floors, floors_of
from rewardflow.plan.named_schedules import SCHEDULES_OF_ORIGINAL, SYNCHRONOUS, min_steps
from rewardflow.plan.settings import PlanSettings, PublishedRun
from rewardflow.plan.simulate import simulate
from rewardflow.plan.simulated_figures import PlannedTimeline, ScheduleFigures, ScheduleRow, figures_of

_SAME_SCALE: Final = 0.005  # a scale this close to 1 counts as 1, so that the plan's own simulations are used
_STEPS_OF_GAIN: Final = 3  # counted steps of a simulation with one more unit
_STEPS_AS_ORIGINAL: Final = 8
_WORTH_A_PROCESS: Final = 20_000  # calls; fewer are simulated faster than a process starts


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleComparison:
    """A published change of the step time, and the simulated one."""

    name: str
    schedule: str
    published_s: float
    step_s: float
    published_change: float
    change: float

    @property
    def points_off(self) -> float:
        return 100 * (self.change - self.published_change)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "schedule": self.schedule,
            "published_s": self.published_s,
            "step_s": self.step_s,
            "published_change": self.published_change,
            "change": self.change,
            "points_off": self.points_off,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TierRow:
    """A tier of the service, and the schedule that is best with it."""

    name: str
    best: ScheduleRow

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, **self.best.to_json()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    settings: PlanSettings
    rows: tuple[ScheduleRow, ...]
    timelines: tuple[PlannedTimeline, ...]  # one for each row
    as_original: tuple[ScheduleRow, ...]
    published: tuple[ScheduleComparison, ...]
    floors: Floors
    recommended: ScheduleRow
    recommendation: str
    gains: tuple[Gain, ...]
    tiers: tuple[TierRow, ...] = ()

    @property
    def binding(self) -> Binding:
        return self.recommended.binding

    def to_json(self) -> dict[str, Any]:
        original = {"as_original": [row.to_json() for row in self.as_original]} if self.as_original else {}
        published = {"published": [one.to_json() for one in self.published]} if self.published else {}
        return {
            "schedules": [row.to_json() for row in self.rows],
            **original,
            **published,
            "floor_s": self.floors.floor_s,
            "floors": self.floors.to_json(),
            "binding": self.binding,
            "recommended": self.recommended.schedule,
            "recommendation": self.recommendation,
            "gains": [gain.to_json() for gain in self.gains],
            **({"tiers": [tier.to_json() for tier in self.tiers]} if self.tiers else {}),
            "steps": self.settings.steps,
            "simulated_steps": self.settings.simulated_steps,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """One simulation."""

    settings: PlanSettings
    name: str
    steps: int
    as_original: bool = False

    @property
    def is_too_short_to_fill(self) -> bool:
        """Whether the run is too short to fill the pipeline before it drains; such a run is simulated in full."""
        return self.settings.steps < min_steps(self.name)

    @property
    def num_calls(self) -> int:
        return self.settings.calls_per_step * self.steps


def make_plan(settings: PlanSettings, *, processes: int = 1) -> Plan:
    """Simulates every schedule, in several processes if that is faster."""
    with _quiet():
        return _make_plan(settings, processes)


def _make_plan(settings: PlanSettings, processes: int) -> Plan:
    floors = floors_of(settings)
    names = dict.fromkeys([SYNCHRONOUS, *settings.schedules])
    tasks = [_Task(settings=settings, name=name, steps=settings.simulated_steps) for name in names]
    tasks += _as_original(settings, SCHEDULES_OF_ORIGINAL if settings.as_original else ())
    figures = _simulated(tasks, processes)
    rows = _with_changes([one.row for one in figures[: len(names)]])
    original = _with_changes([one.row for one in figures[len(names) :]])
    best = recommended(rows)
    return Plan(
        settings=settings,
        rows=rows,
        timelines=tuple(one.timeline for one in figures[: len(names)]),
        as_original=original,
        published=_compared(settings, original, processes),
        floors=floors,
        recommended=best,
        recommendation=sentence(best, rows[0], floors),
        gains=_gains(settings, best.schedule, processes),
        tiers=_tiers(settings, names, processes),
    )


def _tiers(settings: PlanSettings, names: Iterable[str], processes: int) -> tuple[TierRow, ...]:
    """Simulates every schedule with each tier, and keeps the best one of each."""
    listed = list(names)
    tasks = [
        _Task(settings=replace(settings, service=tier.of(settings.service)), name=name, steps=settings.simulated_steps)
        for tier in settings.tiers
        for name in listed
    ]
    figures = _simulated(tasks, processes)
    by_tier = [figures[start : start + len(listed)] for start in range(0, len(figures), len(listed))]
    return tuple(
        TierRow(name=tier.name, best=recommended(_with_changes([one.row for one in own])))
        for tier, own in zip(settings.tiers, by_tier, strict=True)
    )


def _as_original(settings: PlanSettings, names: Sequence[str]) -> list[_Task]:
    steps = min(_STEPS_AS_ORIGINAL, settings.simulated_steps)
    return [_Task(settings=settings, name=name, steps=max(steps, min_steps(name)), as_original=True) for name in names]


def _with_changes(rows: Sequence[ScheduleRow]) -> tuple[ScheduleRow, ...]:
    """Sets each row's change against the first row, which is synchronous."""
    return tuple(replace(row, change=row.step_s / rows[0].step_s - 1 if rows[0].step_s else 0.0) for row in rows)


# -- one more unit of each resource ------------------------------------------------------------------------------------


def _gains(settings: PlanSettings, name: str, processes: int) -> tuple[Gain, ...]:
    steps = min_steps(name) - 1 + _STEPS_OF_GAIN
    variants = list(with_more(settings))
    tasks = [_Task(settings=one, name=name, steps=steps) for one in (settings, *(more for _, _, more in variants))]
    before, *after = (one.row.step_s for one in _simulated(tasks, processes))
    return tuple(
        Gain(resource=resource, unit=unit, step_s=step_s, saved_s=before - step_s)
        for (resource, unit, _), step_s in zip(variants, after, strict=True)
    )


# -- published runs ----------------------------------------------------------------------------------------------------


def _compared(
    settings: PlanSettings, original: Sequence[ScheduleRow], processes: int
) -> tuple[ScheduleComparison, ...]:
    """Compares each published run with the plan's device, scaled until the synchronous steps take equally long."""
    known = {row.schedule: row.step_s for row in original}
    wanted = [(run, name, _scale(settings, known, run)) for run in settings.published for name in run.changes]
    tasks = [
        task
        for _, name, scale in wanted
        if scale != 1.0
        for task in _as_original(replace(settings, device=settings.device.scaled(scale)), [name])
    ]
    simulated = iter(_simulated(tasks, processes))
    return tuple(
        _comparison(run, name, known[name], known[SYNCHRONOUS])
        if scale == 1.0
        else _comparison(run, name, next(simulated).row.step_s, run.synchronous_s)
        for run, name, scale in wanted
    )


def _comparison(run: PublishedRun, name: str, step_s: float, synchronous_s: float) -> ScheduleComparison:
    return ScheduleComparison(
        name=run.name,
        schedule=name,
        published_s=run.synchronous_s * (1 + run.changes[name]),
        step_s=step_s,
        published_change=run.changes[name],
        change=step_s / synchronous_s - 1,
    )


def _scale(settings: PlanSettings, known: dict[str, float], run: PublishedRun) -> float:
    """Returns the scale of the device. Leaves log-probs out: a synchronous step computes them while calls run."""
    device = settings.device
    alone_s = device.generation_s + device.update_s + settings.mini_batches * device.optimizer_s + device.publish_s
    scale = 1 + (run.synchronous_s - known[SYNCHRONOUS]) / alone_s
    return 1.0 if abs(scale - 1) <= _SAME_SCALE else scale


# -- running simulations -----------------------------------------------------------------------------------------------


def _simulated(tasks: Sequence[_Task], processes: int) -> list[ScheduleFigures]:
    """Returns the figures in order of the tasks. Starts new processes only if they have enough work."""
    num_processes = min(processes, len(tasks))
    if num_processes < 2 or sum(task.num_calls for task in tasks) < _WORTH_A_PROCESS:
        return [_figures(task) for task in tasks]
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with concurrent.futures.ProcessPoolExecutor(num_processes, mp_context=context, initializer=_begin_process) as pool:
        try:
            return [future.result() for future in [pool.submit(_figures_in_process, task) for task in tasks]]
        except BaseException:
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()  # it would simulate for another minute, and its result is not needed
            raise


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences warnings: failures of the simulated service are in the figures."""
    logger = logging.getLogger("rewardflow")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _begin_process() -> None:
    """Leaves interrupts to the parent process, and silences warnings about slow rewards on a busy machine.

    Turns garbage collection off: nearly all objects of a simulation live until its end, and collecting took a fifth of
    the time.
    """
    gc.disable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("rewardflow").setLevel(logging.ERROR)


def _figures_in_process(task: _Task) -> ScheduleFigures:
    figures = _figures(task)
    gc.collect()
    return figures


def _figures(task: _Task) -> ScheduleFigures:
    settings, name = task.settings, task.name
    run = simulate(settings, name, steps=task.steps, as_original=task.as_original)
    whole = (
        simulate(settings, name, steps=settings.steps, as_original=task.as_original)
        if task.is_too_short_to_fill
        else None
    )
    return figures_of(run, settings, name, floors_of(settings), whole=whole)
