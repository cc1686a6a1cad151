"""Formats the figures of a plan as text, the same for the terminal and the HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rewardflow.plan.advice import Gain
from rewardflow.plan.floors import Floors
from rewardflow.plan.planner import ScheduleComparison
from rewardflow.plan.simulated_figures import ScheduleRow

HEADINGS: Final = (
    "schedule",
    "step",
    "change",
    "exposed",
    "busy",
    "stale",
    "in flight",
    "cost",
    "run",
    "run cost",
    "binds",
)
COMPARED_HEADINGS: Final = (
    "measured run",
    "schedule",
    "published step",
    "simulated",
    "published change",
    "simulated",
    "points off",
)
_LEAST_SAVING: Final = 0.005  # of a step; a smaller saving is within chance


@dataclass(frozen=True, slots=True)
class TableLine:
    """One line of a table."""

    texts: tuple[str, ...]
    is_emphasised: bool = False


def schedule_lines(rows: Sequence[ScheduleRow], recommended: str | None = None) -> list[TableLine]:
    return [TableLine(_texts(row), row.schedule == recommended) for row in rows]


def _texts(row: ScheduleRow) -> tuple[str, ...]:
    return (
        row.schedule,
        seconds(row.step_s),
        f"{row.change:+.1%}",
        seconds(row.exposed_s),
        f"{row.busy:.0%}",
        str(row.max_staleness),
        f"{row.calls_in_flight:,.0f}",
        dollars(row.cost_usd),
        long_time(row.total_s),
        dollars(row.total_cost_usd),
        row.binding.replace("_", " "),
    )


def comparison_line(one: ScheduleComparison) -> TableLine:
    return TableLine(
        (
            one.name,
            one.schedule,
            seconds(one.published_s),
            seconds(one.step_s),
            f"{one.published_change:+.1%}",
            f"{one.change:+.1%}",
            f"{one.points_off:+.1f}",
        )
    )


def gain_text(gain: Gain, step_s: float) -> str:
    """Says what the gain saves; a saving within chance counts as nothing."""
    share = gain.saved_s / step_s if step_s else 0.0
    saved = f"{seconds(gain.saved_s)} a step (-{share:.1%})" if share >= _LEAST_SAVING else "nothing"
    return f"{gain.unit}: {saved}"


def floors_text(floors: Floors) -> str:
    rate = f", rate {seconds(floors.rate_s)}" if floors.rate_s else ""
    parts = f"compute {seconds(floors.compute_s)}, slots {seconds(floors.slots_s)}{rate}"
    return f"Floor of a step: {seconds(floors.floor_s)} ({parts})"


def seconds(value_s: float) -> str:
    if value_s >= 100:
        return f"{value_s:,.0f} s"
    return f"{value_s:.1f} s" if value_s >= 1 else f"{value_s:.3f} s"


def long_time(value_s: float) -> str:
    minutes = round(value_s / 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else seconds(value_s)


def dollars(usd: float) -> str:
    if usd == 0:
        return "-"
    return f"${usd:,.2f}" if usd >= 1 else f"${usd:.4f}"
