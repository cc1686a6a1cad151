"""Builds the parts of sections: tables, grids of charts, cards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rewardflow.drawing.charts import line_chart
from rewardflow.drawing.markup import Child, Markup, tag
from rewardflow.report.curves import Curve, NamedSteps, chart_of, in_parts

_TALL = 9  # rows: higher than a chart


def section(anchor: str, title: str, *children: Child, lead: str = "") -> Markup:
    return tag("section", tag("h2", title), tag("p", lead, class_="lead") if lead else None, children, id=anchor)


def card(title: str, value: str, note: str, *, tone: str = "") -> Markup:
    return tag(
        "div",
        tag("div", title, class_="card-title"),
        tag("div", value, class_="card-value"),
        tag("div", note, class_="card-note"),
        class_=f"card {tone}".strip(),
    )


def table(headings: Sequence[str], rows: Iterable[Sequence[Child]]) -> Markup:
    """Makes a table whose first column is text and whose others are figures."""
    rows = list(rows)
    head = tag("tr", [tag("th", heading, scope="col") for heading in headings])
    body = [tag("tr", tag("th", row[0], scope="row"), [tag("td", cell) for cell in row[1:]]) for row in rows]
    return tag(
        "div",
        tag("table", tag("thead", head), tag("tbody", body)),
        class_="table-box tall" if len(rows) > _TALL else "table-box",
    )


def charts(curves: Iterable[Curve], runs: Sequence[NamedSteps], *, beside: Markup | None = None) -> Markup | None:
    """Makes a grid of `beside` and the charts that have something to show."""
    parts = [part for curve in curves for part in in_parts(curve)]
    drawn = [line_chart(chart) for part in parts if (chart := chart_of(part, runs)) is not None]
    return tag("div", beside, drawn, class_="charts") if drawn or beside else None


def wide(child: Child) -> Markup:
    """Lets a part scroll sideways on a narrow screen, instead of shrinking until it is unreadable."""
    return tag("div", tag("div", child, class_="wide-inner"), class_="wide", tabindex=0, role="group")
