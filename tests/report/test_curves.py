"""Figures over steps as charts."""

from __future__ import annotations

from rewardflow.report.curves import MAX_LINES, MAX_POINTS, Curve, CurveLine, NamedSteps, chart_of, in_parts
from rewardflow.report.steps import StepRow

STEP = Curve(title="T", lines=[CurveLine(name="T", of=lambda row: float(row.step))])


def steps(*numbers: int) -> list[StepRow]:
    return [StepRow(step=number) for number in numbers]


def test_a_figure_of_every_step_is_a_point() -> None:
    chart = chart_of(STEP, [NamedSteps(name="a", steps=steps(3, 4, 5))])
    assert chart is not None
    assert (list(chart.xs), list(chart.series[0].values)) == ([3, 4, 5], [3.0, 4.0, 5.0])


def test_a_long_run_is_drawn_as_means() -> None:
    chart = chart_of(STEP, [NamedSteps(name="a", steps=steps(*range(4 * MAX_POINTS)))])
    assert chart is not None
    assert len(chart.xs) == MAX_POINTS
    assert list(chart.series[0].values)[:2] == [1.5, 5.5]
    assert "means over 4 steps" in chart.note


def test_of_two_runs_each_has_a_gap_where_the_other_goes_on() -> None:
    chart = chart_of(STEP, [NamedSteps(name="a", steps=steps(0, 1)), NamedSteps(name="b", steps=steps(1, 2))])
    assert chart is not None
    assert [(one.name, list(one.values)) for one in chart.series] == [("a", [0.0, 1.0, None]), ("b", [None, 1.0, 2.0])]
    assert "dashed" in chart.series[1].tone


def test_a_gap_stays_where_steps_are_and_the_ends_without_figures_are_cut() -> None:
    curve = Curve(title="T", lines=[CurveLine(name="T", of=lambda row: {1: 1.0, 3: 3.0}.get(row.step))])
    chart = chart_of(curve, [NamedSteps(name="a", steps=steps(0, 1, 2, 3, 4))])
    assert chart is not None
    assert (list(chart.xs), list(chart.series[0].values)) == ([1, 2, 3], [1.0, None, 3.0])


def test_what_is_measured_now_and_then_is_one_line_of_dots() -> None:
    lines = [CurveLine(name="T", of=lambda row: {1: 1.0, 3: 3.0}.get(row.step))]
    chart = chart_of(Curve(title="T", lines=lines, is_sparse=True), [NamedSteps(name="a", steps=steps(0, 1, 2, 3, 4))])
    assert chart is not None
    assert (list(chart.xs), list(chart.series[0].values), chart.has_dots) == ([1, 3], [1.0, 3.0], True)


def test_a_curve_of_more_lines_than_colours_is_several_and_loses_none() -> None:
    lines = [CurveLine(name=str(number), of=lambda row: 1.0) for number in range(MAX_LINES + 3)]
    parts = in_parts(Curve(title="T", lines=lines))
    assert [part.title for part in parts] == ["T, 1 of 2", "T, 2 of 2"]
    assert [line for part in parts for line in part.lines] == lines
    assert in_parts(STEP) == [STEP]


def test_where_there_is_nothing_to_show_there_is_no_chart() -> None:
    nothing = Curve(title="T", lines=[CurveLine(name="T", of=lambda row: None)])
    zeros = Curve(title="T", lines=[CurveLine(name="T", of=lambda row: 0.0)], hides_zeros=True)
    runs = [NamedSteps(name="a", steps=steps(0, 1))]
    assert chart_of(nothing, runs) is None
    assert chart_of(zeros, runs) is None
    assert chart_of(STEP, [NamedSteps(name="a", steps=[])]) is None
    assert chart_of(Curve(title="T", lines=zeros.lines), runs) is not None
