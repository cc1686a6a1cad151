"""Small charts as SVG: lines over steps, stacked columns, histograms, ranges.

Always true: a chart has only finite figures, and a missing figure is a gap; `data-points` holds the chart's figures for
the tooltips of the page's script; colours are CSS classes, which the page's style defines for light and dark.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rewardflow.drawing.markup import Child, Markup, number, tag
from rewardflow.drawing.scales import LogScale, Scale, figure, padded, powers_of_ten, ticks

WIDTH, HEIGHT = 440.0, 190.0
LEFT, RIGHT, TOP, BOTTOM = 54.0, 12.0, 10.0, 24.0

_MOST_X_LABELS = 6
_VERY_DIFFERENT = 20.0
_AXIS_UNITS = ("s", "$", "%")  # short enough to write at every tick

Numbers = Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A figure for every x. `tone` is a CSS class of the page's style."""

    name: str
    values: Numbers
    tone: str = "tone-1"
    low: Numbers = ()  # with `high`: a band around the line
    high: Numbers = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """The common fields of every chart. `xs` are numbers on the axis, `x_name` is the name of their unit."""

    title: str
    xs: Sequence[float]
    series: Sequence[Series]
    unit: str = ""
    x_name: str = "step"
    x_texts: Sequence[str] = ()  # labels of the xs, if they are not the numbers themselves
    note: str = ""
    from_zero: bool = False
    is_log: bool = False  # used only if all figures are positive and differ much in size
    has_dots: bool = False  # a dot at each figure, for charts with few
    width: float = WIDTH
    height: float = HEIGHT


def line_chart(chart: Chart) -> Markup:
    values = [value for s in chart.series for value in (*s.values, *s.low, *s.high) if value is not None]
    frame = _Frame.of(chart, _bounds(values, from_zero=chart.from_zero))
    if chart.is_log and values and 0 < min(values) * _VERY_DIFFERENT <= max(values):
        frame = replace(frame, y=LogScale(min(values) / 1.3, max(values) * 1.3, frame.y.start, frame.y.end))
    drawn: list[Child] = [frame.axes()]
    for series in chart.series:
        if series.low and series.high:
            drawn.append(frame.band(series))
        drawn.append(frame.line(series))
    return _figure(chart, frame, drawn)


def column_chart(chart: Chart) -> Markup:
    """Draws stacked columns: each series is on top of those before it, and None counts as 0."""
    heights = [sum(s.values[i] or 0.0 for s in chart.series) for i in range(len(chart.xs))]
    frame = _Frame.of(chart, (0.0, max(heights, default=0.0) * 1.04 or 1.0), is_columns=True)
    drawn: list[Child] = [frame.axes()]
    base = [0.0] * len(chart.xs)
    for series in chart.series:
        tops = [low + max(0.0, value or 0.0) for low, value in zip(base, series.values, strict=True)]
        drawn.append(tag("path", d=frame.columns(base, tops), class_=f"area {series.tone}"))
        base = tops
    return _figure(chart, frame, drawn)


def range_chart(chart: Chart) -> Markup:
    """Draws for each x a bar from low to high and a dot at the value, with several series side by side."""
    bounds = _bounds([v for s in chart.series for v in (*s.values, *s.low, *s.high)], from_zero=True)
    frame = _Frame.of(chart, bounds, is_columns=True)
    drawn: list[Child] = [frame.axes()]
    for place, series in enumerate(chart.series):
        shift = (place - (len(chart.series) - 1) / 2) * min(14.0, frame.column_width / (len(chart.series) + 1))
        for x, value, low, high in zip(chart.xs, series.values, series.low, series.high, strict=True):
            if value is None or low is None or high is None:
                continue
            at = frame.x(x) + shift
            drawn.append(tag("line", x1=at, x2=at, y1=frame.y(low), y2=frame.y(high), class_=f"whisker {series.tone}"))
            drawn.append(tag("circle", cx=at, cy=frame.y(value), r=4.0, class_=f"dot {series.tone}"))
    return _figure(chart, frame, drawn)


@dataclass(frozen=True, slots=True)
class _Frame:
    """The coordinates inside one chart."""

    chart: Chart
    x: Scale
    y: Scale | LogScale
    column_width: float

    @classmethod
    def of(cls, chart: Chart, bounds: tuple[float, float], *, is_columns: bool = False) -> _Frame:
        left, right = (min(chart.xs), max(chart.xs)) if chart.xs else (0.0, 1.0)
        inner = chart.width - LEFT - RIGHT
        pitch = _pitch(chart.xs)
        half = pitch / 2 if is_columns else 0.0
        x = Scale(left - half, right + half, LEFT, chart.width - RIGHT)
        y = Scale(*bounds, chart.height - BOTTOM, TOP)
        return cls(chart, x, y, inner * pitch / max(right - left + 2 * half, 1e-12))

    def axes(self) -> Markup:
        lines: list[Child] = []
        low, high = self.y.low, self.y.high
        unit = self.chart.unit if self.chart.unit in _AXIS_UNITS else ""
        for value in powers_of_ten(low, high) if isinstance(self.y, LogScale) else ticks(low, high):
            at = self.y(value)
            lines.append(tag("line", x1=LEFT, x2=self.chart.width - RIGHT, y1=at, y2=at, class_="grid"))
            lines.append(tag("text", figure(value, unit), x=LEFT - 6, y=at + 3.5, class_="axis end"))
        for x, text in self._x_labels():
            lines.append(tag("text", text, x=self.x(x), y=self.chart.height - 8, class_="axis middle"))
        return tag("g", lines)

    def _x_labels(self) -> list[tuple[float, str]]:
        xs, texts = self.chart.xs, self.chart.x_texts
        if texts:
            every = -(-len(texts) // _MOST_X_LABELS)
            return list(zip(xs, texts, strict=True))[every // 2 :: every]
        is_whole = all(x == int(x) for x in xs)
        values = ticks(min(xs), max(xs), _MOST_X_LABELS) if xs else []
        return [(value, figure(value)) for value in values if not is_whole or value == int(value)]

    def line(self, series: Series) -> Markup:
        """Draws one path with a gap at every missing figure; a single figure between gaps is a dot."""
        pieces = _pieces(
            [
                None if value is None or not math.isfinite(value) else (self.x(x), self.y(value))
                for x, value in zip(self.chart.xs, series.values, strict=True)
            ]
        )
        path = "".join("M" + "L".join(f"{number(x)},{number(y)}" for x, y in piece) for piece in pieces)
        marked = [point for piece in pieces if self.chart.has_dots or len(piece) == 1 for point in piece]
        dots = [tag("circle", cx=x, cy=y, r=2.5, class_=f"dot {series.tone}") for x, y in marked]
        return tag("g", tag("path", d=path, class_=f"line {series.tone}"), dots)

    def band(self, series: Series) -> Markup:
        places = [
            None if low is None or high is None else (self.x(x), self.y(low), self.y(high))
            for x, low, high in zip(self.chart.xs, series.low, series.high, strict=True)
        ]
        path = ""
        for piece in _pieces(places):
            around = [(x, low) for x, low, _ in piece] + [(x, high) for x, _, high in reversed(piece)]
            path += "M" + "L".join(f"{number(x)},{number(y)}" for x, y in around) + "Z"
        return tag("path", d=path, class_=f"band {series.tone}")

    def columns(self, base: Sequence[float], tops: Sequence[float]) -> str:
        """Draws one path for all columns: a thousand elements would be slow."""
        gap = 1.0 if self.column_width > 5 else 0.0
        path = []
        for x, low, top in zip(self.chart.xs, base, tops, strict=True):
            if top > low:
                left = self.x(x) - self.column_width / 2 + gap / 2
                y = self.y(top)
                path.append(
                    f"M{number(left)},{number(y)}h{number(self.column_width - gap)}"
                    f"v{number(self.y(low) - y)}h{number(gap - self.column_width)}z"
                )
        return "".join(path)


def _figure(chart: Chart, frame: _Frame, drawn: Sequence[Child]) -> Markup:
    points = {
        "x": [round(frame.x(x) / chart.width, 4) for x in chart.xs],  # as a share of the picture's width
        "xTexts": [f"{chart.x_name} {text}".strip() for text in chart.x_texts or map(figure, chart.xs)],
        "series": [
            {"name": s.name, "tone": s.tone, "texts": [figure(v, chart.unit) for v in s.values]} for s in chart.series
        ],
    }
    legend = [
        tag("span", tag("i", class_=f"swatch {series.tone}"), series.name, class_="key") for series in chart.series
    ]
    svg = tag(
        "svg",
        drawn,
        viewBox=f"0 0 {number(chart.width)} {number(chart.height)}",
        role="img",
        aria_label=chart.title,
        class_="plot",
    )
    return tag(
        "figure",
        tag("figcaption", tag("span", chart.title, class_="title"), tag("span", chart.note, class_="note")),
        tag("div", svg, class_="plot-box"),
        tag("div", legend, class_="legend") if len(chart.series) > 1 or chart.series[0].name != chart.title else None,
        class_="chart",
        data_points=json.dumps(points, ensure_ascii=False, separators=(",", ":")),
    )


def _bounds(values: Sequence[float | None], *, from_zero: bool) -> tuple[float, float]:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    if from_zero and low >= 0:
        return 0.0, high * 1.06 or 1.0
    return padded(low, high)


def _pitch(xs: Sequence[float]) -> float:
    return (max(xs) - min(xs)) / (len(xs) - 1) if len(xs) > 1 else 1.0


def _pieces(points: Sequence[tuple[float, ...] | None]) -> list[list[tuple[float, ...]]]:
    """Splits the points at the gaps."""
    pieces: list[list[tuple[float, ...]]] = [[]]
    for point in points:
        if point is not None:
            pieces[-1].append(point)
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]
