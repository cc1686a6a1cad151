"""Draws a figure over steps as a chart, of one run or of several.

Always true: a chart is made only if it has something to show; a run with more steps than a chart can show is drawn as
means over equal numbers of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rewardflow.drawing.charts import Chart, Series
from rewardflow.report.steps import StepRow

MAX_POINTS = 400
MAX_LINES = 8

Figure = Callable[[StepRow], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveLine:
    name: str
    of: Figure
    low: Figure | None = None
    high: Figure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    title: str
    lines: Sequence[CurveLine]
    unit: str = ""
    note: str = ""
    from_zero: bool = False
    is_log: bool = False
    hides_zeros: bool = False  # no chart if all figures are zero
    is_sparse: bool = False  # measured only at some steps: a line connects them


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSteps:
    """A run's steps. The chart shows the name if it has several runs."""

    name: str
    steps: Sequence[StepRow]


def in_parts(curve: Curve) -> list[Curve]:
    """Splits a curve with more lines than colours into several curves."""
    lines = curve.lines
    parts = [lines[first : first + MAX_LINES] for first in range(0, len(lines), MAX_LINES)]
    if len(parts) < 2:
        return [curve]
    return [replace(curve, lines=part, title=f"{curve.title}, {n} of {len(parts)}") for n, part in enumerate(parts, 1)]


def chart_of(curve: Curve, runs: Sequence[NamedSteps]) -> Chart | None:
    """Draws the chart. Lines of one run differ in colour; the lines of a second run are dashed."""
    numbers = [row.step for run in runs for row in run.steps]
    if not numbers:
        return None
    first = min(numbers)
    width = -(-(max(numbers) - first + 1) // MAX_POINTS)
    xs = sorted({(number - first) // width for number in numbers})
    series = []
    for place, run in enumerate(runs):
        for index, line in enumerate(curve.lines):
            name = line.name if len(runs) == 1 else f"{line.name} · {run.name}" if len(curve.lines) > 1 else run.name
            tone = f"tone-{(index if len(curve.lines) > 1 else place) % MAX_LINES + 1}{' dashed' if place else ''}"
            low, high = (_means(of, run.steps, xs, first, width) if of else () for of in (line.low, line.high))
            values = _means(line.of, run.steps, xs, first, width)
            series.append(Series(name=name, values=values, low=low, high=high, tone=tone))
    if not any(value or (value == 0 and not curve.hides_zeros) for each in series for value in each.values):
        return None
    shown = _shown(series, is_sparse=curve.is_sparse)
    return Chart(
        title=curve.title,
        xs=[first + xs[place] * width for place in shown],
        series=[_only(each, shown) for each in series],
        has_dots=curve.is_sparse,
        unit=curve.unit,
        note=curve.note if width == 1 else f"{curve.note} (means over {width} steps)".strip(),
        from_zero=curve.from_zero,
        is_log=curve.is_log,
    )


def _shown(series: Sequence[Series], *, is_sparse: bool) -> Sequence[int]:
    """Returns the places from the first figure to the last; of a sparse curve only those with a figure."""
    there = [place for place in range(len(series[0].values)) if any(each.values[place] is not None for each in series)]
    return there if is_sparse else range(there[0], there[-1] + 1)


def _only(series: Series, places: Sequence[int]) -> Series:
    values, low, high = (
        [numbers[place] for place in places] if numbers else () for numbers in (series.values, series.low, series.high)
    )
    return replace(series, values=values, low=low, high=high)


def _means(of: Figure, steps: Sequence[StepRow], xs: Sequence[int], first: int, width: int) -> list[float | None]:
    sums: dict[int, tuple[float, int]] = {}
    for row in steps:
        value = of(row)
        if value is not None:
            x = (row.step - first) // width
            total, count = sums.get(x, (0.0, 0))
            sums[x] = (total + value, count + 1)
    return [sums[x][0] / sums[x][1] if x in sums else None for x in xs]
