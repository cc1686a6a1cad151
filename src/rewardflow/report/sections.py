"""The sections of a run's page: each function takes the run and returns markup, or None if it has nothing to show."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from rewardflow.drawing.charts import Chart, Series, column_chart, line_chart, range_chart
from rewardflow.drawing.markup import Child, Markup, tag
from rewardflow.drawing.scales import figure
from rewardflow.drawing.timeline import KINDS, legend, timeline
from rewardflow.observe.histogram import Histogram
from rewardflow.report.curve_catalogue import (
    call_curves,
    cost_curves,
    failure_curves,
    learning_curves,
    other_curves,
    reward_time_curve,
    step_time_curve,
)
from rewardflow.report.curves import Curve, CurveLine, Figure, NamedSteps, chart_of
from rewardflow.report.detail import stretches_of, timeline_of
from rewardflow.report.latencies import latency_shares
from rewardflow.report.page_parts import card, charts, section, table, wide
from rewardflow.report.run_data import RunData
from rewardflow.report.run_figures import RunFigures, binding_of
from rewardflow.report.steps import Spread, StepRow
from rewardflow.report.validation_curves import other_validation_curves, validation_curves

_QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
_ALARMING = 0.25
_FAILING = 0.05


def headline(run: RunData, figures: RunFigures) -> Markup:
    binding = binding_of(figures)
    exposed = figures.exposed_share
    failed = figures.failed_share
    reasons = sorted(figures.failed.items(), key=lambda item: -item[1])
    kinds = ", ".join(f"{figure(count)} {kind.replace('_', ' ')}" for kind, count in reasons[:2])
    score = f"score {figure(figures.score_first)} → {figure(figures.score_last)}"
    cards = [
        card("Steps", _steps_text(run, figures), score if figures.score_last is not None else ""),
        card("Time", figure(figures.total_s or None, "s"), f"{figure(figures.step_s, 's')} a step (median)"),
        card(
            "Exposed reward time",
            figure(exposed, "%"),
            f"{figure(figures.exposed_s, 's')} waiting, {figure(figures.hidden_s, 's')} hidden behind work",
            tone="bad" if exposed is not None and exposed > _ALARMING else "",
        ),
        card("What binds", binding.name, binding.reason, tone="double"),
        card("Cost", figure(figures.cost_usd, "$"), _cost_text(figures)),
        card(
            "Failed verdicts",
            figure(failed, "%"),
            kinds or f"none of {figure(figures.rollouts)}",
            tone="bad" if failed is not None and failed > _FAILING else "",
        ),
    ]
    return tag("div", cards, class_="cards")


def _cost_text(figures: RunFigures) -> str:
    if not figures.validation_calls and not figures.validation_cost_usd:
        cached = f", {figure(figures.cached_tokens)} of them cached" if figures.cached_tokens else ""
        saved = f" (saved {figure(figures.cache_saved_usd, '$')})" if figures.cache_saved_usd else ""
        return f"{figure(figures.calls)} calls, {figure(figures.tokens)} tokens{cached}{saved}"
    calls = figures.calls + figures.validation_calls
    return f"{figure(calls)} calls; validations {figure(figures.validation_cost_usd, '$')} of it"


def _steps_text(run: RunData, figures: RunFigures) -> str:
    done = figures.num_trained or len(run.steps)
    planned = run.planned_steps
    return f"{done:,}" if planned is None or planned == done else f"{done:,} of {planned:,}"


# -- time --


def time_section(runs: Sequence[NamedSteps], figures: Sequence[RunFigures]) -> Markup | None:
    drawn = [_columns(run, is_alone=len(runs) == 1) for run in runs if any(row.trained for row in run.steps)]
    if not drawn:
        return None
    totals, is_alone = _time_table(runs, figures), len(runs) == 1
    both = _apart([step_time_curve(), reward_time_curve()], runs)
    curves = charts(both, runs, beside=totals if is_alone else None)
    return section(
        "time",
        "Where the time went",
        [wide(chart) for chart in drawn],
        None if is_alone else totals,
        curves,
        lead="Every second of the trainer's device has one label: the work it did, or what it waited for.",
    )


def _columns(run: NamedSteps, *, is_alone: bool) -> Markup:
    lines = [CurveLine(name=name, of=_seconds_of(kind)) for kind, name in KINDS.items()]
    chart = chart_of(Curve(title="Device time of each step", lines=lines, unit="s"), [run])
    kinds = list(KINDS)
    series = [] if chart is None else chart.series
    shown = [
        Series(name=one.name, values=one.values, tone=f"kind-{kinds[place]}")
        for place, one in enumerate(series)
        if any(one.values)
    ]
    title = "Device time of each step" if is_alone else f"Device time of each step: {run.name}"
    return column_chart(
        Chart(title=title, xs=[] if chart is None else chart.xs, series=shown, unit="s", width=1120.0, height=240.0)
    )


def _seconds_of(kind: str) -> Figure:
    def seconds_of(row: StepRow) -> float | None:
        if row.trained is None:
            return None
        return row.trained.busy_s.get(kind, 0.0) + row.trained.idle_s.get(kind, 0.0)

    return seconds_of


def _time_table(runs: Sequence[NamedSteps], figures: Sequence[RunFigures]) -> Markup:
    rows: list[list[Child]] = []
    for kind, name in KINDS.items():
        if not any(one.seconds_by_kind.get(kind) for one in figures):
            continue
        cells: list[Child] = [tag("span", tag("i", class_=f"swatch kind-{kind}"), name)]
        for one in figures:
            total_s = one.seconds_by_kind.get(kind, 0.0)
            cells += [figure(total_s, "s"), figure(total_s / one.total_s if one.total_s else None, "%")]
        rows.append(cells)
    headings = [f"{what}{'' if len(runs) == 1 else f', {run.name}'}" for run in runs for what in ("in all", "share")]
    return table(["", *headings], rows)


# -- moment by moment --


def timelines_section(runs: Sequence[RunData]) -> Markup | None:
    drawn: list[Child] = []
    kinds: set[str] = set()
    for run in runs:
        stretches = stretches_of(run.steps)
        for stretch in stretches if len(runs) == 1 else stretches[-1:]:
            picture = timeline_of(run, stretch)
            if picture is None:
                continue
            kinds |= {span.kind for lane in picture.lanes for span in lane.spans}
            name = stretch.name if len(runs) == 1 else f"{run.name}. {stretch.name}"
            drawn.append(tag("h3", name))
            drawn.append(wide(timeline(picture)))
    if not drawn:
        return None
    lead = (
        "What the device did, and beneath it the reward calls in flight: a shade for each step. Good overlap is a full "
        "lane above a full area; a red stretch above it is time that was paid for waiting."
    )
    return section("timelines", "Moment by moment", legend(kinds), drawn, lead=lead)


# -- learning --


def learning_section(runs: Sequence[NamedSteps]) -> Markup | None:
    steps = [row for run in runs for row in run.steps]
    drawn = charts(_apart(learning_curves(steps), runs), runs)
    others = charts(other_curves(steps), runs)
    if drawn is None and others is None:
        return None
    more = tag("details", tag("summary", "All other figures of metrics.jsonl"), others) if others is not None else None
    return section("learning", "Learning", drawn, more)


def _apart(curves: Sequence[Curve], runs: Sequence[NamedSteps]) -> list[Curve]:
    """Splits a curve of many lines into one chart for each line if runs are compared, to keep it readable."""
    if len(runs) == 1:
        return list(curves)
    return [
        curve if len(curve.lines) == 1 else replace(curve, title=f"{curve.title}: {line.name}", lines=[line])
        for curve in curves
        for line in (curve.lines if len(curve.lines) > 1 else curve.lines[:1])
    ]


def validation_section(runs: Sequence[NamedSteps]) -> Markup | None:
    steps = [row for run in runs for row in run.steps]
    drawn = charts(_apart(validation_curves(steps), runs), runs)
    others = charts(other_validation_curves(steps), runs)
    if drawn is None and others is None:
        return None
    lead = "What versions of the policy were worth on validation data; the axis is how many steps were trained before."
    more = tag("details", tag("summary", "All other figures of validations"), others) if others is not None else None
    return section("validation", "Validation", drawn, more, lead=lead)


def warnings_section(runs: Sequence[NamedSteps]) -> Markup | None:
    """Shows each warning once, with the steps after which it came."""
    steps_of: dict[tuple[str, str], list[int]] = {}
    for run in runs:
        for row in run.steps:
            for warning in row.trained.warnings if row.trained is not None else ():
                steps_of.setdefault(("" if len(runs) == 1 else f"{run.name}: ", warning), []).append(row.step)
    if not steps_of:
        return None
    items = [
        tag("li", f"{run}step {steps[0]}{f' and {len(steps) - 1:,} more' if len(steps) > 1 else ''}: {warning}")
        for (run, warning), steps in steps_of.items()
    ]
    return section("warnings", "Warnings", tag("ul", items, class_="warnings"))


# -- calls --


def calls_section(runs: Sequence[NamedSteps], figures: Sequence[RunFigures]) -> Markup | None:
    if not any(one.calls or one.latency_s.count for one in figures):
        return None
    steps = [row for run in runs for row in run.steps]
    first = [_latency_chart(runs, figures), _mini_batch_chart(runs)]
    lead = (
        "How long verdicts took, retries included, and what the agent did to get them. If the later mini-batches have "
        "the longer latencies, groups that are judged fast are trained first."
    )
    return section(
        "calls",
        "Reward calls",
        tag("div", first, class_="charts"),
        _quantile_table(runs, figures),
        charts(_apart(call_curves(steps), runs), runs, beside=_outcome_table(runs, figures)),
        lead=lead,
    )


def _latency_chart(runs: Sequence[NamedSteps], figures: Sequence[RunFigures]) -> Markup | None:
    shares = latency_shares([one.latency_s for one in figures])
    if shares is None:
        return None
    series = [
        Series(name="Latency" if len(runs) == 1 else run.name, values=values, tone=f"tone-{place + 1}")
        for place, (run, values) in enumerate(zip(runs, shares.values, strict=True))
    ]
    chart = Chart(
        title="Latency",
        xs=list(range(len(shares.texts))),
        x_texts=shares.texts,
        x_name="",
        series=series,
        unit="%",
        note="share of verdicts; the axis is logarithmic",
        from_zero=True,
    )
    return column_chart(chart) if len(runs) == 1 else line_chart(chart)


def _mini_batch_chart(runs: Sequence[NamedSteps]) -> Markup | None:
    spreads = [_mini_batches(run.steps) for run in runs]
    count = max(len(each) for each in spreads)
    if not count:
        return None
    series = []
    for place, (run, each) in enumerate(zip(runs, spreads, strict=True)):
        filled = [*each, *[Spread(count=0, mean=None, p10=None, p50=None, p90=None)] * (count - len(each))]
        series.append(
            Series(
                name="median" if len(runs) == 1 else run.name,
                values=[one.p50 for one in filled],
                low=[one.p10 for one in filled],
                high=[one.p90 for one in filled],
                tone=f"tone-{place + 1}",
            )
        )
    chart = Chart(
        title="Latency by mini-batch",
        xs=list(range(1, count + 1)),
        x_texts=[str(index + 1) for index in range(count)],
        x_name="mini-batch",
        series=series,
        unit="s",
        note="in order of training; bars from 10 % to 90 %, medians over steps",
    )
    return range_chart(chart)


def _mini_batches(steps: Sequence[StepRow]) -> list[Spread]:
    lists = [row.trained.mini_batch_latency_s for row in steps if row.trained is not None]
    count = max((len(each) for each in lists), default=0)
    spreads = []
    for index in range(count):
        there = [each[index] for each in lists if index < len(each) and each[index].count]
        p10, p50, p90 = (
            _median(values) for values in ([s.p10 for s in there], [s.p50 for s in there], [s.p90 for s in there])
        )
        spreads.append(Spread(count=len(there), mean=None, p10=p10, p50=p50, p90=p90))
    return spreads


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _quantile_table(runs: Sequence[NamedSteps], figures: Sequence[RunFigures]) -> Markup:
    rows: list[list[Child]] = []
    for run, one in zip(runs, figures, strict=True):
        prefix = "" if len(runs) == 1 else f"{run.name}: "
        for name, histogram in (("latency", one.latency_s), ("in the queue", one.waited_s)):
            rows.append([prefix + name, *_quantile_cells(histogram)])
    return table(["", "verdicts", "mean", *(f"{100 * q:g} %" for q in _QUANTILES), "longest"], rows)


def _quantile_cells(histogram: Histogram) -> list[str]:
    quantiles = [figure(histogram.quantile(q), "s") for q in _QUANTILES]
    return [figure(histogram.count), figure(histogram.mean, "s"), *quantiles, figure(histogram.max, "s")]


def _outcome_table(runs: Sequence[NamedSteps], figures: Sequence[RunFigures]) -> Markup:
    names = dict.fromkeys(name for one in figures for name in one.outcomes)
    counted: dict[str, list[float]] = {
        "calls": [one.calls for one in figures],
        **{_ended(name): [one.outcomes.get(name, 0.0) for one in figures] for name in names},
        "retries": [one.retries for one in figures],
        "hedges": [one.hedges for one in figures],
        "breakers opened": [one.breakers_opened for one in figures],
        "outages": [one.outages for one in figures],
        "verdicts from the journal": [one.cached for one in figures],
    }
    rows = [[name, *(figure(count) for count in counts)] for name, counts in counted.items()]
    return table(["", *(["in all"] if len(runs) == 1 else [run.name for run in runs])], rows)


def _ended(outcome: str) -> str:
    return "ended: 429" if outcome == "rate_limited" else f"ended: {outcome.replace('_', ' ')}"


# -- cost and failures --


def cost_section(runs: Sequence[NamedSteps], figures: Sequence[RunFigures]) -> Markup | None:
    if not any(one.cost_usd or one.tokens or one.validation_cost_usd for one in figures):
        return None
    by_run = [cost_curves(run.steps) for run in runs]
    if len(runs) == 1:
        return section("cost", "Cost", charts(by_run[0], runs))
    # The running total has a table for each run.
    drawn = charts(by_run[0][1:], runs)
    return section("cost", "Cost", drawn)


def failures_section(runs: Sequence[NamedSteps], figures: Sequence[RunFigures]) -> Markup | None:
    if not any(one.failed or one.dropped or one.imputed for one in figures):
        return None
    kinds = dict.fromkeys(kind for one in figures for kind in one.failed)
    reasons = dict.fromkeys(reason for one in figures for reason in one.dropped)
    rows: list[list[Child]] = []
    for kind in kinds:
        rows.append(
            [f"verdicts: {kind.replace('_', ' ')}", *_counted([one.failed.get(kind, 0) for one in figures], figures)]
        )
    for reason in reasons:
        counts = [one.dropped.get(reason, 0) for one in figures]
        rows.append([f"groups dropped: {reason.replace('_', ' ')}", *(c for n in counts for c in (figure(n), ""))])
    imputed = [one.imputed for one in figures]
    if any(imputed):
        rows.append(["verdicts filled in by post-processing", *_counted(imputed, figures)])
    headings = [f"{what}{'' if len(runs) == 1 else f', {run.name}'}" for run in runs for what in ("number", "share")]
    steps = [row for run in runs for row in run.steps]
    lead = "A failed verdict neither trains nor votes in its group; a group with too few is dropped."
    curves = charts(_apart(failure_curves(steps), runs), runs, beside=table(["", *headings], rows))
    return section("failures", "Failures", curves, lead=lead)


def _counted(counts: Sequence[float], figures: Sequence[RunFigures]) -> list[str]:
    pairs = zip(counts, figures, strict=True)
    return [text for n, one in pairs for text in (figure(n), figure(n / one.rollouts if one.rollouts else None, "%"))]
