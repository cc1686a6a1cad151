"""A figure over steps as a chart, of one run or of several.

Always true: a chart is made only where there is something to show; a run of more steps than a chart can show is drawn
as means over equal numbers of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rewardflow.drawing.charts import Chart, Series
from rewardflow.report.steps import StepRow

MAX_POINTS = 400
MAX_LINES = 8

Figure = Callable[[StepRow], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    name: str
    of: Figure
    low: Figure | None = None
    high: Figure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    title: str
    lines: Sequence[Line]
    unit: str = ""
    note: str = ""
    from_zero: bool = False
    is_log: bool = False
    hides_zeros: bool = False  # no chart where nothing ever happened


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSteps:
    """A run's steps. The name is shown where there are several runs."""

    name: str
    steps: Sequence[StepRow]


def chart_of(curve: Curve, runs: Sequence[NamedSteps]) -> Chart | None:
    """Lines of one run differ in colour; of two runs, the second's are dashed."""
    numbers = [row.step for run in runs for row in run.steps]
    if not numbers:
        return None
    first = min(numbers)
    width = -(-(max(numbers) - first + 1) // MAX_POINTS)
    xs = sorted({(number - first) // width for number in numbers})
    series = []
    for place, run in enumerate(runs):
        for index, line in enumerate(curve.lines[:MAX_LINES]):
            name = line.name if len(runs) == 1 else f"{line.name} · {run.name}" if len(curve.lines) > 1 else run.name
            tone = f"tone-{(index if len(curve.lines) > 1 else place) % MAX_LINES + 1}{' dashed' if place else ''}"
            low, high = (_means(of, run.steps, xs, first, width) if of else () for of in (line.low, line.high))
            values = _means(line.of, run.steps, xs, first, width)
            series.append(Series(name=name, values=values, low=low, high=high, tone=tone))
    if not any(value or (value == 0 and not curve.hides_zeros) for each in series for value in each.values):
        return None
    return Chart(
        title=curve.title,
        xs=[first + x * width for x in xs],
        series=series,
        unit=curve.unit,
        note=curve.note if width == 1 else f"{curve.note} (means over {width} steps)".strip(),
        from_zero=curve.from_zero,
        is_log=curve.is_log,
    )


def _means(of: Figure, steps: Sequence[StepRow], xs: Sequence[int], first: int, width: int) -> list[float | None]:
    sums: dict[int, tuple[float, int]] = {}
    for row in steps:
        value = of(row)
        if value is not None:
            x = (row.step - first) // width
            total, count = sums.get(x, (0.0, 0))
            sums[x] = (total + value, count + 1)
    return [sums[x][0] / sums[x][1] if x in sums else None for x in xs]
