"""The measured figures of one schedule, as JSON and as rows beside their yardsticks.

Always true: a ratio is that of the means shown beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean
from typing import Any

from rewardflow.bench.benchmark_row import BenchmarkRow

# Published changes of the original's training time, against its own synchronous loop.
PUBLISHED_CHANGES = {"synchronous": 0.0, "pipeline": -0.123, "one_step": -0.252, "pipeline_one_step": -0.309}

# The bar on a step's time over its floor, by schedule and by the position of its number of slots.
_FLOOR_BARS = {("pipeline_one_step", 0): "<= 1.05", ("stream_0", 1): "<= 1.10"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSchedule:
    """Means over steps. No schedule can go below `floor_s`: all compute, or all calls with all slots in use."""

    schedule: str
    slots: int
    as_original: bool
    step_s: float
    critical_path_s: float
    service_s: float  # the sum of the calls' delays, divided by the slots
    compute_s: float  # in this run, while calls use the CPU too
    undisturbed_compute_s: float  # in a run without calls beside the compute
    scale: float  # seconds here for one second of the original experiment
    exposed_s: float
    hidden_s: float
    final_reward: float
    change: float = 0.0  # of step_s, against `synchronous` with as many slots

    @property
    def floor_s(self) -> float:
        return max(self.undisturbed_compute_s, self.service_s)

    @property
    def over_floor(self) -> float:
        return self.step_s / self.floor_s

    @property
    def over_critical_path(self) -> float:
        return self.step_s / self.critical_path_s

    def to_json(self) -> dict[str, Any]:
        return {
            "schedule": self.schedule,
            "slots": self.slots,
            "step_s": self.step_s,
            "critical_path_s": self.critical_path_s,
            "over_critical_path": self.over_critical_path,
            "floor_s": self.floor_s,
            "over_floor": self.over_floor,
            "change": self.change,
            "exposed_s": self.exposed_s,
            "hidden_s": self.hidden_s,
            "final_reward": self.final_reward,
            "service_s": self.service_s,
            "compute_s": self.compute_s,
            "undisturbed_compute_s": self.undisturbed_compute_s,
            "scale": self.scale,
        }


def mean_of_seeds(figures: Sequence[MeasuredSchedule]) -> MeasuredSchedule:
    """Returns the means over the seeds of one schedule."""
    means: dict[str, Any] = {
        field.name: fmean(getattr(one, field.name) for one in figures)
        for field in fields(MeasuredSchedule)
        if isinstance(getattr(figures[0], field.name), float)
    }
    return replace(figures[0], **means)


def report_of(figures: Iterable[MeasuredSchedule]) -> dict[str, Any]:
    """Returns the whole benchmark as one JSON object."""
    every = list(figures)
    return {
        "schedules": [one.to_json() for one in every if not one.as_original],
        "as_original": [
            {**one.to_json(), "published_change": PUBLISHED_CHANGES[one.schedule]} for one in every if one.as_original
        ],
    }


def rows_of(figures: Iterable[MeasuredSchedule]) -> Iterator[BenchmarkRow]:
    """Yields rows for the table as the figures come."""
    slots_seen: list[int] = []
    for one in figures:
        if one.slots not in slots_seen:
            slots_seen.append(one.slots)
        yield from _rows(one, slots_seen.index(one.slots))


def _rows(one: MeasuredSchedule, slots_place: int) -> Iterator[BenchmarkRow]:
    name = f"{'as the original, ' if one.as_original else ''}{one.schedule}, {one.slots} slots"
    yield BenchmarkRow(
        name=f"{name}: step",
        value=one.step_s,
        unit="s",
        yardstick=one.critical_path_s,
        yardstick_name="critical path",
        bar="<= 1.05",
        bar_on="ratio",
    )
    bar = "" if one.as_original else _FLOOR_BARS.get((one.schedule, slots_place), "")
    if bar:
        floor_name = "compute" if one.undisturbed_compute_s > one.service_s else "calls in all slots"
        yield BenchmarkRow(
            name=f"{name}: step over its floor",
            value=one.step_s,
            unit="s",
            yardstick=one.floor_s,
            yardstick_name=floor_name,
            bar=bar,
            bar_on="ratio",
        )
    if one.as_original and one.schedule != "synchronous":
        published = PUBLISHED_CHANGES[one.schedule]
        yield BenchmarkRow(
            name=f"{name}: change of {one.change:+.1%}, published {published:+.1%}",
            value=abs(one.change - published) * 100,
            unit="points",
            bar="<= 5",
        )
