"""Simulates every schedule and recommends one, for `rewardflow plan`.

Always true: a plan depends only on its settings, not on the number of processes that compute it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import logging
import math
import multiprocessing
import signal
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from rewardflow.plan.advice import Gain, recommended, sentence, with_more
from rewardflow.plan.floors import Binding, Floors, floors_of
from rewardflow.plan.named_schedules import SCHEDULES_OF_ORIGINAL, SYNCHRONOUS, min_steps, num_edge_steps
from rewardflow.plan.settings import PlanSettings, PublishedRun
from rewardflow.plan.simulate import SimulatedRun, simulate, simulate_step_s
from rewardflow.plan.simulated_figures import PlannedTimeline, ScheduleFigures, ScheduleRow, figures_of

_SAME_SCALE: Final = 0.005  # a scale this close to 1 counts as 1, so that the plan's own simulations are used
_COUNTED_FIRST: Final = 2  # steps between filling and draining; more are simulated where these differ
_SETTLED: Final = 0.01  # standard error of the mean step time, as a share of it, below which it has settled
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


T = TypeVar("T")
R = TypeVar("R", covariant=True)

Told = Callable[[int, int], None]  # how many simulations are done, and of how many


class _Runnable(Protocol[R]):
    """A simulation that can be sent to another process."""

    @property
    def num_calls(self) -> int: ...

    def run(self) -> R: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """The figures of one schedule, from a simulation of at most `steps` steps: fewer if their times have settled."""

    settings: PlanSettings
    name: str
    steps: int
    as_original: bool = False

    @property
    def first_steps(self) -> int:
        """The length of the first simulation, which is the only one if the figures have settled."""
        return min(self.steps, 2 * num_edge_steps(self.name) + _COUNTED_FIRST)

    @property
    def is_too_short_to_fill(self) -> bool:
        """Whether the run is too short to fill the pipeline before it drains; such a run is simulated in full."""
        return self.settings.steps < min_steps(self.name)

    @property
    def num_calls(self) -> int:
        return self.settings.calls_per_step * self.first_steps

    def run(self) -> ScheduleFigures:
        settings, name = self.settings, self.name
        run = simulate(settings, name, steps=self.first_steps, as_original=self.as_original)
        if self.first_steps < self.steps and not _is_settled(run, num_edge_steps(name)):
            run = simulate(settings, name, steps=self.steps, as_original=self.as_original)
        whole = (
            simulate(settings, name, steps=settings.steps, as_original=self.as_original)
            if self.is_too_short_to_fill
            else None
        )
        return figures_of(run, settings, name, floors_of(settings), whole=whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepTime:
    """The time of a step alone, from a simulation that ends before it drains."""

    settings: PlanSettings
    name: str
    as_original: bool = False

    @property
    def num_calls(self) -> int:
        return self.settings.calls_per_step * (num_edge_steps(self.name) + _COUNTED_FIRST)

    def run(self) -> float:
        return simulate_step_s(self.settings, self.name, counted=_COUNTED_FIRST, as_original=self.as_original)


def _is_settled(run: SimulatedRun, edge: int) -> bool:
    """Whether the mean time of the steps between filling and draining is known well enough."""
    durations_s = [report.duration_s for report in run.reports[edge:-edge]]
    error_s = statistics.stdev(durations_s) / math.sqrt(len(durations_s))
    return error_s <= _SETTLED * statistics.fmean(durations_s)


def make_plan(settings: PlanSettings, *, processes: int = 1, tell: Told | None = None) -> Plan:
    """Simulates every schedule, in several processes if that is faster. `tell` hears how far it has come."""
    with _quiet(), _Simulations(processes, tell) as simulations:
        return _make_plan(settings, simulations)


def _make_plan(settings: PlanSettings, simulations: _Simulations) -> Plan:
    floors = floors_of(settings)
    names = dict.fromkeys([SYNCHRONOUS, *settings.schedules])
    tasks = [_Task(settings=settings, name=name, steps=settings.simulated_steps) for name in names]
    tasks += _as_original(settings, SCHEDULES_OF_ORIGINAL if settings.as_original else ())
    simulations.expect(len(tasks) + _num_later(settings) + len(settings.tiers) * len(names))
    figures = simulations.run(tasks)
    rows = _with_changes([one.row for one in figures[: len(names)]])
    original = _with_changes([one.row for one in figures[len(names) :]])
    best = recommended(rows)
    return Plan(
        settings=settings,
        rows=rows,
        timelines=tuple(one.timeline for one in figures[: len(names)]),
        as_original=original,
        published=_compared(settings, original, simulations),
        floors=floors,
        recommended=best,
        recommendation=sentence(best, rows[0], floors),
        gains=_gains(settings, best.schedule, simulations),
        tiers=_tiers(settings, names, simulations),
    )


def _tiers(settings: PlanSettings, names: Iterable[str], simulations: _Simulations) -> tuple[TierRow, ...]:
    """Simulates every schedule with each tier, and keeps the best one of each."""
    listed = list(names)
    tasks = [
        _Task(settings=replace(settings, service=tier.of(settings.service)), name=name, steps=settings.simulated_steps)
        for tier in settings.tiers
        for name in listed
    ]
    figures = simulations.run(tasks)
    by_tier = [figures[start : start + len(listed)] for start in range(0, len(figures), len(listed))]
    return tuple(
        TierRow(name=tier.name, best=recommended(_with_changes([one.row for one in own])))
        for tier, own in zip(settings.tiers, by_tier, strict=True)
    )


def _num_later(settings: PlanSettings) -> int:
    """Returns how many simulations follow those of the schedules, at most."""
    return 1 + len(list(with_more(settings))) + sum(len(run.changes) for run in settings.published)


def _as_original(settings: PlanSettings, names: Sequence[str]) -> list[_Task]:
    steps = min(_STEPS_AS_ORIGINAL, settings.simulated_steps)
    return [_Task(settings=settings, name=name, steps=max(steps, min_steps(name)), as_original=True) for name in names]


def _with_changes(rows: Sequence[ScheduleRow]) -> tuple[ScheduleRow, ...]:
    """Sets each row's change against the first row, which is synchronous."""
    return tuple(replace(row, change=row.step_s / rows[0].step_s - 1 if rows[0].step_s else 0.0) for row in rows)


# -- one more unit of each resource ------------------------------------------------------------------------------------


def _gains(settings: PlanSettings, name: str, simulations: _Simulations) -> tuple[Gain, ...]:
    variants = list(with_more(settings))
    tasks = [_StepTime(settings=one, name=name) for one in (settings, *(more for _, _, more in variants))]
    before, *after = simulations.run(tasks)
    return tuple(
        Gain(resource=resource, unit=unit, step_s=step_s, saved_s=before - step_s)
        for (resource, unit, _), step_s in zip(variants, after, strict=True)
    )


# -- published runs ----------------------------------------------------------------------------------------------------


def _compared(
    settings: PlanSettings, original: Sequence[ScheduleRow], simulations: _Simulations
) -> tuple[ScheduleComparison, ...]:
    """Compares each published run with the plan's device, scaled until the synchronous steps take equally long."""
    known = {row.schedule: row.step_s for row in original}
    wanted = [(run, name, _scale(settings, known, run)) for run in settings.published for name in run.changes]
    tasks = [
        _StepTime(settings=replace(settings, device=settings.device.scaled(scale)), name=name, as_original=True)
        for _, name, scale in wanted
        if scale != 1.0
    ]
    simulated = iter(simulations.run(tasks))
    return tuple(
        _comparison(run, name, known[name], known[SYNCHRONOUS])
        if scale == 1.0
        else _comparison(run, name, next(simulated), run.synchronous_s)
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


class _Simulations:
    """Runs simulations, in processes that start when there is enough work for them and live until the plan is made."""

    def __init__(self, processes: int, tell: Told | None) -> None:
        self._processes = processes
        self._tell = tell or (lambda done, expected: None)
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None
        self._others = set(multiprocessing.active_children())
        self._num_done = 0
        self._num_expected = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._pool is None:
            return
        if kind is not None:
            for child in set(multiprocessing.active_children()) - self._others:
                child.terminate()  # it would simulate for another minute, and its result is not needed
        self._pool.shutdown()

    def expect(self, num_simulations: int) -> None:
        self._num_expected = num_simulations
        self._tell(self._num_done, num_simulations)

    def run(self, tasks: Sequence[_Runnable[T]]) -> list[T]:
        """Returns the results in order of the tasks."""
        if self._processes < 2 or len(tasks) < 2 or not (self._pool or _is_worth_a_process(tasks)):
            return [self._count(task.run()) for task in tasks]
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = concurrent.futures.ProcessPoolExecutor(
                self._processes, mp_context=context, initializer=_begin_process
            )
        largest_first = sorted(tasks, key=lambda task: -task.num_calls)  # so that no process waits long for the last
        futures = {id(task): self._pool.submit(_run_in_process, task) for task in largest_first}
        for future in concurrent.futures.as_completed(futures.values()):
            self._count(future.result())
        return [futures[id(task)].result() for task in tasks]

    def _count(self, result: T) -> T:
        self._num_done += 1
        self._tell(self._num_done, max(self._num_expected, self._num_done))
        return result


def _is_worth_a_process(tasks: Sequence[_Runnable[Any]]) -> bool:
    return sum(task.num_calls for task in tasks) >= _WORTH_A_PROCESS


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


def _run_in_process(task: _Runnable[T]) -> T:
    result = task.run()
    gc.collect()
    return result
