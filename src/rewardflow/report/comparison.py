"""Compares two runs in one table: each figure of both, and the change from the first to the second.

Always true: a row shows a change only if both figures are known and the first is above zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rewardflow.drawing.markup import Child, Markup, tag
from rewardflow.drawing.scales import figure
from rewardflow.report.page_parts import table
from rewardflow.report.run_figures import RunFigures, binding_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """One figure of both runs. `less_is_better` is None if neither direction is better."""

    name: str
    of: Callable[[RunFigures], float | None]
    unit: str = ""
    less_is_better: bool | None = None


ROWS = (
    ComparisonRow(name="steps trained", of=lambda one: one.num_trained),
    ComparisonRow(name="time", of=lambda one: one.total_s or None, unit="s"),
    ComparisonRow(name="step time (median)", of=lambda one: one.step_s, unit="s", less_is_better=True),
    ComparisonRow(name="device busy", of=lambda one: one.busy_share, unit="%", less_is_better=False),
    ComparisonRow(name="exposed reward time", of=lambda one: one.exposed_share, unit="%", less_is_better=True),
    ComparisonRow(name="exposed a step", of=lambda one: _a_step(one.exposed_s, one), unit="s", less_is_better=True),
    ComparisonRow(name="hidden a step", of=lambda one: _a_step(one.hidden_s, one), unit="s"),
    ComparisonRow(name="score of the last step", of=lambda one: one.score_last, less_is_better=False),
    ComparisonRow(name="latency, median", of=lambda one: one.latency_s.quantile(0.5), unit="s", less_is_better=True),
    ComparisonRow(name="latency, 99 %", of=lambda one: one.latency_s.quantile(0.99), unit="s", less_is_better=True),
    ComparisonRow(name="in the queue, mean", of=lambda one: one.waited_s.mean, unit="s", less_is_better=True),
    ComparisonRow(name="calls", of=lambda one: one.calls),
    ComparisonRow(name="429", of=lambda one: one.outcomes.get("rate_limited", 0.0), less_is_better=True),
    ComparisonRow(name="retries", of=lambda one: one.retries, less_is_better=True),
    ComparisonRow(name="hedges", of=lambda one: one.hedges),
    ComparisonRow(name="failed verdicts", of=lambda one: one.failed_share, unit="%", less_is_better=True),
    ComparisonRow(name="cost", of=lambda one: one.cost_usd, unit="$"),
    ComparisonRow(name="cost of validations", of=lambda one: one.validation_cost_usd or None, unit="$"),
    ComparisonRow(name="cost a trained rollout", of=lambda one: _a_rollout(one), unit="$"),
)


def comparison_table(names: Sequence[str], figures: Sequence[RunFigures]) -> Markup:
    first, second = figures
    rows: list[list[Child]] = [["what binds", *(binding_of(one).name for one in figures), ""]]
    for row in ROWS:
        one, other = row.of(first), row.of(second)
        if one is None and other is None:
            continue
        rows.append([row.name, figure(one, row.unit), figure(other, row.unit), _change(row, one, other)])
    return tag("div", table(["", *names, "change"], rows), class_="comparison")


def _change(row: ComparisonRow, one: float | None, other: float | None) -> Markup | str:
    if one is None or other is None or one <= 0:
        return ""
    change = other / one - 1
    tone = "" if row.less_is_better is None or abs(change) < 0.005 else "worse"
    if tone and (change < 0) == row.less_is_better:
        tone = "better"
    # Adding 0.0 turns -0.0 into 0.0.
    return tag("span", f"{round(100 * change, 1) + 0.0:+.1f} %", class_=tone or None)


def _a_rollout(figures: RunFigures) -> float | None:
    trained_usd = figures.cost_usd - figures.validation_cost_usd
    return trained_usd / figures.rollouts if figures.rollouts else None


def _a_step(total_s: float, figures: RunFigures) -> float | None:
    return total_s / figures.num_trained if figures.num_trained else None
