"""Draws the work of devices over an interval as SVG: a lane for each device, and below them the calls in flight.

Always true: everything is clipped to the interval, and the size of the picture is bounded: a span shorter than a third
of a pixel is merged with its neighbour of the same kind, calls are drawn in at most one column a pixel, and the oldest
of very many steps share one area.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rewardflow.drawing.markup import Child, Markup, number, tag
from rewardflow.drawing.scales import Scale, figure, seconds, ticks

WIDTH = 1120.0
LEFT, RIGHT = 96.0, 12.0
LANE, GAP, LOAD, AXIS = 26.0, 6.0, 92.0, 22.0
_LEAST = 0.35
_MOST_COLUMNS = int(WIDTH - LEFT - RIGHT)
_MOST_AREAS = 32

# The label of each kind of work or waiting. Its colour is the class `kind-<kind>` of the page's style.
KINDS = {
    "generate": "generate",
    "log_probs": "log-probs",
    "validate": "generate for validation",
    "update": "update",
    "publish": "publish",
    "reward": "waits for verdicts",
    "generation": "waits for generation",
    "validation": "waits for validation",
    "checkpoint": "saves a checkpoint",
    "other": "other waiting",
}
IDLE_KINDS = ("reward", "generation", "validation", "checkpoint", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One kind of work of a device, from start to end. `detail` is more text, such as "step 3"."""

    started_s: float
    ended_s: float
    kind: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    name: str
    spans: Sequence[Span]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The mean number of calls in flight in each bin; all bins have the same width."""

    name: str
    started_s: float
    width_s: float
    calls: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A moment with a name, such as the end of a step."""

    at_s: float
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    started_s: float
    ended_s: float
    lanes: Sequence[Lane]
    loads: Sequence[Load] = ()
    marks: Sequence[Mark] = ()
    label: str = "timeline"


def timeline(picture: Timeline) -> Markup:
    """Draws the picture; times on its axis count from its start."""
    x = Scale(picture.started_s, picture.ended_s, LEFT, WIDTH - RIGHT)
    lanes_end = AXIS + len(picture.lanes) * (LANE + GAP)
    height = lanes_end + (LOAD + GAP if picture.loads else 0.0)
    drawn: list[Child] = [_axis(picture, x, height)]
    for place, lane in enumerate(picture.lanes):
        drawn.append(_lane(lane, x, AXIS + place * (LANE + GAP)))
    if picture.loads:
        drawn.append(_loads(picture, x, lanes_end))
    drawn.append(_marks(picture, x, height))
    return tag(
        "svg",
        drawn,
        viewBox=f"0 0 {number(WIDTH)} {number(height)}",
        role="img",
        aria_label=picture.label,
        class_="timeline",
    )


def legend(kinds: Iterable[str]) -> Markup:
    """Explains the colours of the kinds that occur."""
    there = set(kinds)
    keys = [
        tag("span", tag("i", class_=f"swatch kind-{kind}"), name, class_="key")
        for kind, name in KINDS.items()
        if kind in there
    ]
    return tag("div", keys, class_="legend")


def _axis(picture: Timeline, x: Scale, height: float) -> Markup:
    lines: list[Child] = []
    for passed_s in ticks(0.0, picture.ended_s - picture.started_s, 8):
        at = x(picture.started_s + passed_s)
        lines.append(tag("line", x1=at, x2=at, y1=AXIS - 4, y2=height, class_="grid"))
        lines.append(tag("text", seconds(passed_s), x=at, y=AXIS - 9, class_="axis middle"))
    return tag("g", lines)


def _lane(lane: Lane, x: Scale, top: float) -> Markup:
    boxes: list[Child] = [tag("text", lane.name, x=LEFT - 8, y=top + LANE / 2 + 4, class_="axis end")]
    for span in _drawable(lane.spans, x):
        left, right = x(span.started_s), x(span.ended_s)
        kind = span.kind if span.kind in KINDS else "other"
        name = " · ".join(filter(None, (KINDS[kind], span.detail, seconds(span.ended_s - span.started_s))))
        boxes.append(
            tag(
                "rect",
                x=left,
                y=top,
                width=max(right - left, _LEAST),
                height=LANE,
                class_=f"span kind-{kind}",
                data_tip=name,
            )
        )
    return tag("g", boxes)


def _drawable(spans: Sequence[Span], x: Scale) -> list[Span]:
    """Clips spans to the interval, and merges spans that are too thin to see with neighbours of the same kind."""
    least_s = _LEAST * (x.high - x.low) / (x.end - x.start)
    kept: list[Span] = []
    for span in sorted(spans, key=lambda span: span.started_s):
        started_s, ended_s = max(span.started_s, x.low), min(span.ended_s, x.high)
        if ended_s <= started_s:
            continue
        last = kept[-1] if kept else None
        same = last is not None and (last.kind, last.detail) == (span.kind, span.detail)
        if last is not None and same and started_s - last.ended_s < least_s:
            kept[-1] = replace(last, ended_s=max(ended_s, last.ended_s))
        elif ended_s - started_s >= least_s or last is None or started_s - last.ended_s >= least_s:
            kept.append(replace(span, started_s=started_s, ended_s=ended_s))
    return kept


def _loads(picture: Timeline, x: Scale, top: float) -> Markup:
    """Draws stacked areas: the calls of each step are on top of those of earlier steps."""
    edges = _column_edges(picture)
    areas = _areas(picture.loads, [(a + b) / 2 for a, b in itertools.pairwise(edges)])
    most = max((sum(column) for column in zip(*(area.calls for area in areas), strict=True)), default=0.0) or 1.0
    y = Scale(0.0, most * 1.05, top + LOAD, top)
    drawn: list[Child] = [tag("text", "calls", x=LEFT - 40, y=top + 12, class_="axis end")]
    drawn.append(tag("text", "in flight", x=LEFT - 40, y=top + 26, class_="axis end"))
    for value in ticks(0.0, most, 2):
        drawn.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y(value), y2=y(value), class_="grid"))
        drawn.append(tag("text", figure(value), x=LEFT - 8, y=y(value) + 3, class_="axis end small"))
    base = [0.0] * (len(edges) - 1)
    for place, area in enumerate(areas):
        tops = [low + value for low, value in zip(base, area.calls, strict=True)]
        path = _stairs(edges, base, tops, x, y)
        peak = f"{area.name}: calls in flight, {figure(max(area.calls, default=0.0))} at most"
        drawn.append(tag("path", d=path, class_=f"area load load-{place % 4}", data_tip=peak))
        base = tops
    return tag("g", drawn)


@dataclass(frozen=True, slots=True)
class _Area:
    name: str
    calls: Sequence[float]  # in each column


def _column_edges(picture: Timeline) -> list[float]:
    """Returns where columns begin and end: at the edges of bins, or at every pixel if bins are thinner."""
    started_s, ended_s = picture.started_s, picture.ended_s
    edges = {started_s, ended_s}
    for load in picture.loads:
        edges |= {min(max(load.started_s + i * load.width_s, started_s), ended_s) for i in range(len(load.calls) + 1)}
        if len(edges) > _MOST_COLUMNS:
            return [started_s + (ended_s - started_s) * i / _MOST_COLUMNS for i in range(_MOST_COLUMNS + 1)]
    return sorted(edges)


def _areas(loads: Sequence[Load], middles_s: Sequence[float]) -> list[_Area]:
    """Returns an area for each load; the first of too many loads become one."""
    num_joined = len(loads) - _MOST_AREAS + 1 if len(loads) > _MOST_AREAS else 0
    areas = [_Area(load.name, [_calls_at(load, middle_s) for middle_s in middles_s]) for load in loads[num_joined:]]
    if not num_joined:
        return areas
    together = [sum(_calls_at(load, middle_s) for load in loads[:num_joined]) for middle_s in middles_s]
    return [_Area(f"{loads[0].name} to {loads[num_joined - 1].name}", together), *areas]


def _calls_at(load: Load, at_s: float) -> float:
    index = int((at_s - load.started_s) // load.width_s)
    return load.calls[index] if 0 <= index < len(load.calls) else 0.0


def _stairs(edges: Sequence[float], base: Sequence[float], tops: Sequence[float], x: Scale, y: Scale) -> str:
    """Returns the outline of touching columns: along the tops, and back along the base."""
    if not tops:
        return ""
    there = [(x(edge), y(top)) for a, b, top in zip(edges, edges[1:], tops, strict=False) for edge in (a, b)]
    back = [(x(edge), y(low)) for a, b, low in zip(edges, edges[1:], base, strict=False) for edge in (a, b)]
    return "M" + "L".join(f"{number(px)},{number(py)}" for px, py in there + back[::-1]) + "Z"


def _marks(picture: Timeline, x: Scale, height: float) -> Markup:
    """Draws a line for each mark, with its name on the left, where the step was, if there is room."""
    drawn: list[Child] = []
    last = LEFT
    for mark in picture.marks:
        if not picture.started_s <= mark.at_s <= picture.ended_s:
            continue
        at = x(mark.at_s)
        drawn.append(tag("line", x1=at, x2=at, y1=AXIS - 2, y2=height, class_="mark", data_tip=mark.name))
        if picture.loads and at - last > 7.0 * len(mark.name):
            drawn.append(tag("text", mark.name, x=at - 4, y=height - LOAD + 12, class_="axis end mark-name"))
        last = at
    return tag("g", drawn)
