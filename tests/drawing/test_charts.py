"""Charts as SVG, with what they show beside them as data."""

from __future__ import annotations

import html
import json
import re
import xml.etree.ElementTree as ET
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from rewardflow.drawing.charts import Chart, Series, column_chart, line_chart, range_chart

VALUES = st.lists(st.none() | st.floats(-1e12, 1e12), min_size=1, max_size=30)


def points_of(markup: str) -> Any:
    found = re.search(r'data-points="([^"]*)"', markup)
    assert found is not None
    return json.loads(html.unescape(found[1]))


def a_chart(values: list[float | None], **fields: Any) -> Chart:
    series = [Series(name="x", values=values)]
    return Chart(**{"title": "T", "xs": list(range(len(values))), "series": series, **fields})


def test_a_gap_in_the_figures_is_a_gap_in_the_line_and_a_figure_alone_is_a_dot() -> None:
    drawn = line_chart(a_chart([1.0, 2.0, None, 3.0, None, 4.0, 5.0]))
    path = re.search(r'<path d="([^"]*)" class="line', drawn)
    assert path is not None
    assert path[1].count("M") == 3
    assert drawn.count("<circle") == 1


def test_what_is_shown_is_told_to_the_script_with_its_unit() -> None:
    points = points_of(line_chart(a_chart([1.0, None], unit="s", x_name="step")))
    assert points["series"] == [{"name": "x", "tone": "tone-1", "texts": ["1 s", "–"]}]  # noqa: RUF001
    assert points["xTexts"] == ["step 0", "step 1"]
    assert points["x"] == sorted(points["x"])


def test_columns_stand_on_each_other() -> None:
    chart = Chart(
        title="T", xs=[0, 1], series=[Series(name="a", values=[1.0, 0.0]), Series(name="b", values=[1.0, 2.0])]
    )
    heights = [
        [float(h) for h in re.findall(r"v([\d.]+)", path)]
        for path in re.findall(r'<path d="([^"]*)"', column_chart(chart))
    ]
    assert heights[0][0] * 2 == heights[1][1]
    assert [len(each) for each in heights] == [1, 2]


def test_ranges_are_drawn_where_all_of_them_is_known() -> None:
    series = [Series(name="a", values=[1.0, None], low=[0.5, None], high=[2.0, None])]
    drawn = range_chart(Chart(title="T", xs=[1, 2], series=series))
    assert drawn.count("<circle") == 1
    assert drawn.count("whisker") == 1


def test_figures_of_very_different_size_can_be_drawn_by_their_logarithm() -> None:
    drawn = line_chart(a_chart([1.0, 1000.0], is_log=True))
    assert [label for label in ("1", "10", "100", "1,000") if f">{label}</text>" in drawn] == [
        "1",
        "10",
        "100",
        "1,000",
    ]
    assert line_chart(a_chart([0.0, 1000.0], is_log=True)) == line_chart(a_chart([0.0, 1000.0]))


def test_a_name_is_text_and_nothing_else() -> None:
    evil = "</title><script>alert(1)</script>"
    drawn = line_chart(Chart(title=evil, xs=[0], series=[Series(name=evil, values=[1.0])], note=evil))
    assert "<script" not in drawn
    assert points_of(drawn)["series"][0]["name"] == evil


@example(values=[5e-324], from_zero=False, is_log=False)
@given(values=VALUES, from_zero=st.booleans(), is_log=st.booleans())
def test_any_figures_make_well_formed_markup(values: list[float | None], from_zero: bool, is_log: bool) -> None:
    chart = a_chart(values, from_zero=from_zero, is_log=is_log)
    for drawn in (line_chart(chart), column_chart(chart)):
        ET.fromstring(drawn)
        assert "nan" not in drawn
        assert "inf" not in drawn
