"""Two runs in one table: each figure of both, and how far the second is from the first.

Always true: a change is told where both figures are known and the first is above zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rewardflow.drawing.markup import Child, Markup, tag
from rewardflow.drawing.scales import figure
from rewardflow.report.page_parts import table
from rewardflow.report.run_figures import Figures, binding_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`less_is_better` None: neither is."""

    name: str
    of: Callable[[Figures], float | None]
    unit: str = ""
    less_is_better: bool | None = None


ROWS = (
    Row(name="steps trained", of=lambda one: one.num_trained),
    Row(name="time", of=lambda one: one.total_s or None, unit="s"),
    Row(name="step time (median)", of=lambda one: one.step_s, unit="s", less_is_better=True),
    Row(name="device busy", of=lambda one: one.busy_share, unit="%", less_is_better=False),
    Row(name="exposed reward time", of=lambda one: one.exposed_share, unit="%", less_is_better=True),
    Row(name="exposed a step", of=lambda one: _a_step(one.exposed_s, one), unit="s", less_is_better=True),
    Row(name="hidden a step", of=lambda one: _a_step(one.hidden_s, one), unit="s"),
    Row(name="score of the last step", of=lambda one: one.score_last, less_is_better=False),
    Row(name="latency, median", of=lambda one: one.latency_s.quantile(0.5), unit="s", less_is_better=True),
    Row(name="latency, 99 %", of=lambda one: one.latency_s.quantile(0.99), unit="s", less_is_better=True),
    Row(name="in the queue, mean", of=lambda one: one.waited_s.mean, unit="s", less_is_better=True),
    Row(name="calls", of=lambda one: one.calls),
    Row(name="429", of=lambda one: one.outcomes.get("rate_limited", 0.0), less_is_better=True),
    Row(name="retries", of=lambda one: one.retries, less_is_better=True),
    Row(name="hedges", of=lambda one: one.hedges),
    Row(name="failed verdicts", of=lambda one: one.failed_share, unit="%", less_is_better=True),
    Row(name="cost", of=lambda one: one.cost_usd, unit="$"),
    Row(name="cost of validations", of=lambda one: one.validation_cost_usd or None, unit="$"),
    Row(name="cost a trained rollout", of=lambda one: _a_rollout(one), unit="$"),
)


def comparison_table(names: Sequence[str], figures: Sequence[Figures]) -> Markup:
    first, second = figures
    rows: list[list[Child]] = [["what binds", *(binding_of(one).name for one in figures), ""]]
    for row in ROWS:
        one, other = row.of(first), row.of(second)
        if one is None and other is None:
            continue
        rows.append([row.name, figure(one, row.unit), figure(other, row.unit), _change(row, one, other)])
    return tag("div", table(["", *names, "change"], rows), class_="comparison")


def _change(row: Row, one: float | None, other: float | None) -> Markup | str:
    if one is None or other is None or one <= 0:
        return ""
    change = other / one - 1
    tone = "" if row.less_is_better is None or abs(change) < 0.005 else "worse"
    if tone and (change < 0) == row.less_is_better:
        tone = "better"
    # Adding 0.0 takes the sign from a zero.
    return tag("span", f"{round(100 * change, 1) + 0.0:+.1f} %", class_=tone or None)


def _a_rollout(figures: Figures) -> float | None:
    trained_usd = figures.cost_usd - figures.validation_cost_usd
    return trained_usd / figures.rollouts if figures.rollouts else None


def _a_step(total_s: float, figures: Figures) -> float | None:
    return total_s / figures.num_trained if figures.num_trained else None
