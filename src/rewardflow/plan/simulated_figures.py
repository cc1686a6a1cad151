"""Computes the figures of a schedule from its simulated run, and the timeline of two steps.

Always true: figures are means over the steps between those that fill the pipeline and those that drain it. The time of
the whole run is the simulated time of both ends, plus the mean step time for each step between.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any, Final

from rewardflow.observe.events import DeviceWorked
from rewardflow.plan.floors import Binding, Floors
from rewardflow.plan.named_schedules import num_edge_steps
from rewardflow.plan.settings import PlanSettings
from rewardflow.plan.simulate import SimulatedRun

_NUM_POINTS: Final = 240  # points of the curve of calls in flight
_GAP_SHARE: Final = 1e-4  # share of the timeline: pieces of the same work with a smaller gap are drawn as one


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow:
    """The figures of one schedule, as means over its steps."""

    schedule: str
    step_s: float
    change: float  # relative change of step_s against synchronous
    exposed_s: float  # time in which the device waits for verdicts
    hidden_s: float  # time in which calls run while the device works or waits for something else
    busy: float  # share of the step in which the trainer's device works
    max_staleness: int
    calls: float  # per step, with retries
    calls_in_flight: float
    max_calls_in_flight: int
    refused: int  # calls that the rate limit refused, in the whole simulation
    failed: float  # share of verdicts that failed
    cost_usd: float  # per step
    total_s: float  # for all `steps` of the plan
    total_cost_usd: float
    over_floor: float
    binding: Binding

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PlannedSpan:
    """A piece of work, in seconds from the start of the timeline."""

    device: str
    work: str
    step: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTimeline:
    """The timeline of two steps: from the publish of the step before them to their own publish."""

    duration_s: float
    published_s: tuple[float, ...]
    spans: tuple[PlannedSpan, ...]
    in_flight: tuple[int, ...]  # calls in flight at evenly spaced moments


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFigures:
    row: ScheduleRow
    timeline: PlannedTimeline


def figures_of(
    run: SimulatedRun, settings: PlanSettings, name: str, floors: Floors, *, whole: SimulatedRun | None = None
) -> ScheduleFigures:
    """Computes the figures. `whole` is a simulation of all steps, for a run without steps between its two ends."""
    edge = num_edge_steps(name)
    reports = run.reports[edge:-edge]
    since_s, until_s = run.reports[edge - 1].ended_s, reports[-1].ended_s
    duration_s = until_s - since_s
    step_s, exposed_s = duration_s / len(reports), fmean(report.usage.exposed_s for report in reports)
    most = max((level for _, level in run.calls.in_flight(since_s, until_s)), default=0)
    cost_usd = run.cost_usd / len(run.reports)
    num_failed = sum(sum(report.failed.values()) for report in reports)
    row = ScheduleRow(
        schedule=name,
        step_s=step_s,
        change=0.0,
        exposed_s=exposed_s,
        hidden_s=fmean(report.usage.hidden_s for report in reports),
        busy=sum(report.usage.total_busy_s for report in reports) / duration_s if duration_s else 1.0,
        max_staleness=max(report.staleness_max or 0 for report in run.reports),
        calls=len(run.calls.started_s) / len(run.reports),
        calls_in_flight=run.calls.flown_s(since_s, until_s) / duration_s if duration_s else 0.0,
        max_calls_in_flight=most,
        refused=run.num_refused,
        failed=num_failed / (settings.calls_per_step * len(reports)),
        cost_usd=cost_usd,
        total_s=_total_s(run, edge, step_s, settings.steps) if whole is None else _duration_s(whole),
        total_cost_usd=cost_usd * settings.steps,
        over_floor=step_s / floors.floor_s if floors.floor_s else 1.0,
        binding=floors.binding(
            step_s=step_s, exposed_s=exposed_s, slots_are_full=_are_full(settings, name, most_in_flight=most)
        ),
    )
    return ScheduleFigures(row=row, timeline=_timeline(run, edge))


def _are_full(settings: PlanSettings, name: str, *, most_in_flight: int) -> bool:
    """Whether a call ever waited for a slot: all slots were taken and more calls were waiting."""
    slots = settings.service.slots
    return most_in_flight >= slots and settings.calls_per_step * num_edge_steps(name) > slots


def _total_s(run: SimulatedRun, edge: int, step_s: float, steps: int) -> float:
    ends = [*run.reports[:edge], *run.reports[-edge:]]
    return sum(report.duration_s for report in ends) + (steps - len(ends)) * step_s


def _duration_s(run: SimulatedRun) -> float:
    return sum(report.duration_s for report in run.reports)


def _timeline(run: SimulatedRun, edge: int) -> PlannedTimeline:
    shown = run.reports[edge : max(edge + 1, min(edge + 2, len(run.reports) - edge))]
    left_s, right_s = run.reports[edge - 1].ended_s, shown[-1].ended_s
    duration_s = right_s - left_s
    return PlannedTimeline(
        duration_s=duration_s,
        published_s=tuple(report.ended_s - left_s for report in shown),
        spans=_spans(run.worked, left_s, right_s),
        in_flight=_levels(run.calls.in_flight(left_s, right_s), left_s, duration_s),
    )


def _spans(worked: tuple[DeviceWorked, ...], left_s: float, right_s: float) -> tuple[PlannedSpan, ...]:
    spans: list[PlannedSpan] = []
    for event in worked:
        start_s, end_s = max(event.started_s, left_s) - left_s, min(event.at_s, right_s) - left_s
        if end_s <= start_s:
            continue
        same = [span for span in spans[-2:] if (span.device, span.work, span.step) == _what(event)]
        if same and start_s - same[-1].end_s <= _GAP_SHARE * (right_s - left_s):
            spans.remove(same[-1])
            start_s = same[-1].start_s
        spans.append(PlannedSpan(event.device, event.work, event.step, start_s, end_s))
    return tuple(spans)


def _what(event: DeviceWorked) -> tuple[str, str, int]:
    return event.device, event.work, event.step


def _levels(changes: list[tuple[float, int]], left_s: float, duration_s: float) -> tuple[int, ...]:
    """Samples the number of calls at evenly spaced moments."""
    moments = iter([left_s + duration_s * i / (_NUM_POINTS - 1) for i in range(_NUM_POINTS)])
    levels: list[int] = []
    moment = next(moments)
    for (_, level), (until_s, _) in pairwise([(left_s, 0), *changes, (float("inf"), 0)]):
        while moment < until_s:
            levels.append(level)
            following = next(moments, None)
            if following is None:
                return tuple(levels)
            moment = following
    return tuple(levels)
