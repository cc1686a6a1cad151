"""From a simulated run to the figures of its schedule, and to the picture of two of its steps.

Always true: figures are means over the steps between those that fill the pipeline and those that drain it; the whole
run's time is what was simulated of its two ends, and such a step for each of the others.
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

_NUM_POINTS: Final = 240  # of the curve of calls in flight
_GAP_SHARE: Final = 1e-4  # of the picture: pieces of the same work that are this close are drawn as one


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow:
    """One schedule, in the mean over its steps."""

    schedule: str
    step_s: float
    change: float  # of step_s, against synchronous
    exposed_s: float  # the device waits for verdicts
    hidden_s: float  # verdicts are out and the device works, or waits for something else
    busy: float  # share of the step that the trainer's device works
    max_staleness: int
    calls: float  # a step, with retries
    calls_in_flight: float
    max_calls_in_flight: int
    refused: int  # calls that the rate limit turned away, in the whole simulation
    failed: float  # share of verdicts without a score
    cost_usd: float  # a step
    total_s: float  # for as many steps as were asked for
    total_cost_usd: float
    over_floor: float
    binding: Binding

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PlannedSpan:
    """A piece of work, in seconds from the picture's left edge."""

    device: str
    work: str
    step: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTimeline:
    """Two steps, from the publishing of the one before to their own."""

    duration_s: float
    published_s: tuple[float, ...]
    spans: tuple[PlannedSpan, ...]
    in_flight: tuple[int, ...]  # at evenly spaced moments


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFigures:
    row: ScheduleRow
    timeline: PlannedTimeline


def figures_of(
    run: SimulatedRun, settings: PlanSettings, name: str, floors: Floors, *, whole: SimulatedRun | None = None
) -> ScheduleFigures:
    """`whole` is the run that is told itself, where it has no steps between those that fill and those that drain."""
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
    """Whether a call ever had to wait for a slot: all were taken, and there were more calls to make."""
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
    """The level at each of the evenly spaced moments."""
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
