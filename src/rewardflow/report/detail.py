"""Chooses the parts of a run that are shown as timelines: its beginning, its slowest step, its latest steps.

Always true: a stretch is some consecutive steps, from the end of the step before the first to the end of the last;
calls are shown below the devices only if one clock timed both. A run that was continued after its machine restarted, or
on another one, has steps of several clocks: a stretch and its calls are of one clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rewardflow.drawing.timeline import Lane, Load, Mark, Span, Timeline
from rewardflow.observe.run_directory import DEVICES_FILE
from rewardflow.report.device_log import lanes_between, read_device_log
from rewardflow.report.run_data import RunData
from rewardflow.report.steps import StepRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Some consecutive steps, and the reason to show them."""

    name: str
    rows: Sequence[StepRow]


def stretches_of(steps: Sequence[StepRow]) -> list[Stretch]:
    """Chooses among the timed steps: the trained ones, or the judged ones if the run trains nothing."""
    rows = [row for row in steps if row.trained is not None] or [row for row in steps if _is_timed(row)]
    if not rows:
        return []
    parts = of_one_clock(rows)
    latest, earliest = parts[-1][-3:], parts[0][:2]
    last = Stretch(name=_name("The latest steps", latest), rows=latest)
    if len(rows) <= 3:
        return [last]
    first = Stretch(name=_name("The first steps", earliest), rows=earliest)
    slowest = max(rows[2:-3], key=_duration_s, default=None)
    if slowest is None:
        return [first, last]
    return [first, Stretch(name=_name("The slowest step between them", [slowest]), rows=[slowest]), last]


def of_one_clock(rows: Sequence[StepRow]) -> list[list[StepRow]]:
    """Cuts the steps, of which there is at least one, where a step ended before the step before it began."""
    parts: list[list[StepRow]] = [[]]
    began_s = -math.inf
    for row in rows:
        bounds = bounds_of(row)
        if bounds is not None:
            if bounds[1] < began_s:
                parts.append([])
            began_s = bounds[0]
        parts[-1].append(row)
    return parts


def timeline_of(run: RunData, stretch: Stretch) -> Timeline | None:
    bounds = [bound for row in stretch.rows if (bound := bounds_of(row)) is not None]
    if not bounds:
        return None
    started_s, ended_s = min(start for start, _ in bounds), max(end for _, end in bounds)
    numbers = [row.step for row in stretch.rows]
    pieces = read_device_log(run.directory.path / DEVICES_FILE, numbers, open_together=run.open_together)
    lanes = lanes_between(pieces, started_s, ended_s)
    ends = [row for row in stretch.rows if row.trained is not None]
    if ended_s <= started_s:
        return None
    return Timeline(
        started_s=started_s,
        ended_s=ended_s,
        lanes=lanes or ((_summary_lane(ends),) if ends else ()),
        loads=_loads(_with_same_clock(run.steps, stretch.rows[0].step), started_s, ended_s),
        marks=[Mark(at_s=row.trained.ended_s, name=f"step {row.step}") for row in ends if row.trained is not None],
        label=stretch.name,
    )


def bounds_of(row: StepRow) -> tuple[float, float] | None:
    if row.trained is not None:
        return row.trained.ended_s - row.trained.duration_s, row.trained.ended_s
    if row.judged is not None and row.judged.first_submitted_s is not None and row.judged.last_delivered_s is not None:
        return row.judged.first_submitted_s, row.judged.last_delivered_s
    return None


def _with_same_clock(steps: Sequence[StepRow], step: int) -> list[StepRow]:
    return next(part for part in of_one_clock(steps) if any(row.step == step for row in part))


def _loads(steps: Sequence[StepRow], started_s: float, ended_s: float) -> list[Load]:
    loads = [row.judged.in_flight for row in steps if row.judged is not None and row.judged.in_flight is not None]
    return [load for load in loads if load.started_s < ended_s and _end_s(load) > started_s]


def _end_s(load: Load) -> float:
    return load.started_s + load.width_s * len(load.calls)


def _summary_lane(rows: Sequence[StepRow]) -> Lane:
    """Makes a lane from totals if the run has no device log: the seconds of each kind of work, one after another."""
    spans = []
    for row in rows:
        if row.trained is None:
            continue
        at_s = row.trained.ended_s - row.trained.duration_s
        for kind, lasted_s in (*row.trained.busy_s.items(), *row.trained.idle_s.items()):
            spans.append(Span(started_s=at_s, ended_s=at_s + lasted_s, kind=kind, detail=f"step {row.step}, in all"))
            at_s += lasted_s
    return Lane(name="in all", spans=spans)


def _is_timed(row: StepRow) -> bool:
    return bounds_of(row) is not None


def _duration_s(row: StepRow) -> float:
    bounds = bounds_of(row)
    return 0.0 if bounds is None else bounds[1] - bounds[0]


def _name(why: str, rows: Sequence[StepRow]) -> str:
    first, last = rows[0].step, rows[-1].step
    return f"{why}: {first}" if first == last else f"{why}: {first} to {last}"
