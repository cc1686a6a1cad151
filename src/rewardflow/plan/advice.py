"""Recommends a schedule from a plan's figures, and lists what would make it faster.

Always true: among schedules nearly as fast as the fastest, `synchronous` is recommended if present; otherwise the least
stale, and among equally stale ones the one whose run ends first. Every claim in the sentence is a figure of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from rewardflow.plan.floors import Floors
from rewardflow.plan.named_schedules import SCHEDULES, SYNCHRONOUS
from rewardflow.plan.settings import PlanSettings
from rewardflow.plan.simulated_figures import ScheduleRow
from rewardflow.reward.latency import interpolate

_NEARLY: Final = 1.02
_MORE: Final = 1.10  # factor of one more unit of a resource: a tenth of it
_NUM_QUANTILES: Final = 1001
_BOUND_BY: Final = {
    "compute": "the device's own work binds",
    "service_slots": "the service's slots bind",
    "rate_limit": "the service's rate limit binds",
    "tail": "waiting for the slowest calls binds",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The time that one more unit of a resource would save the recommended schedule."""

    resource: str
    unit: str
    step_s: float
    saved_s: float  # per step

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def recommended(rows: Sequence[ScheduleRow]) -> ScheduleRow:
    best_s = min(row.step_s for row in rows)
    near = [row for row in rows if row.step_s <= _NEARLY * best_s]
    for row in near:
        if row.schedule == SYNCHRONOUS:
            return row
    least = min(row.max_staleness for row in near)
    return min((row for row in near if row.max_staleness == least), key=lambda row: row.total_s)


def sentence(row: ScheduleRow, synchronous: ScheduleRow, floors: Floors) -> str:
    stream, max_staleness = SCHEDULES[row.schedule]
    if row.schedule == synchronous.schedule:
        return (
            f"Stay with stream: {stream} and max_staleness: {max_staleness} ({row.schedule}): overlapping buys less "
            f"than {_NEARLY - 1:.0%} of a step of {_seconds(row.step_s)}, because {_BOUND_BY[row.binding]}."
        )
    return (
        f"Take stream: {stream} with max_staleness: {max_staleness} ({row.schedule}): a step takes "
        f"{_seconds(row.step_s)} instead of {_seconds(synchronous.step_s)} ({row.change:+.1%}), {row.over_floor:.2f} "
        f"times its floor of {_seconds(floors.floor_s)}, and {_BOUND_BY[row.binding]}."
    )


def _seconds(value_s: float) -> str:
    return f"{value_s:,.1f} s" if value_s >= 1 else f"{value_s:.3f} s"


def with_more(settings: PlanSettings) -> Iterator[tuple[str, str, PlanSettings]]:
    """Yields each resource, one unit of it in words, and the settings with one more unit."""
    service, device = settings.service, settings.device
    slots = max(service.slots + 1, math.ceil(service.slots * _MORE))
    yield "service_slots", f"{slots} slots instead of {service.slots}", _with_service(settings, slots=slots)
    if service.rpm is not None:
        rpm = service.rpm * _MORE
        yield "rate_limit", f"{rpm:g} requests a minute instead of {service.rpm:g}", _with_service(settings, rpm=rpm)
    if service.tpm is not None:
        tpm = service.tpm * _MORE
        yield "token_limit", f"{tpm:g} tokens a minute instead of {service.tpm:g}", _with_service(settings, tpm=tpm)
    latency = service.latency_function()
    points = [latency(i / (_NUM_QUANTILES - 1)) for i in range(_NUM_QUANTILES)]
    yield (
        "latency",
        "every call a tenth faster",
        _with_service(settings, latency=tuple(0.9 * seconds for seconds in points)),
    )
    cut_s = interpolate(points, 0.9)
    yield (
        "tail",
        "no call slower than nine in ten are",
        _with_service(settings, latency=tuple(min(seconds, cut_s) for seconds in points)),
    )
    generation = replace(device, generation_s=device.generation_s / _MORE)
    yield "generation", "a generator a tenth faster", replace(settings, device=generation)
    training = replace(
        device,
        log_probs_s=device.log_probs_s / _MORE,
        update_s=device.update_s / _MORE,
        optimizer_s=device.optimizer_s / _MORE,
    )
    yield "training", "a trainer a tenth faster", replace(settings, device=training)


def _with_service(settings: PlanSettings, **changes: Any) -> PlanSettings:
    return replace(settings, service=replace(settings.service, **changes))
