"""Makes the page of all runs in a folder: what each is doing, what it has reached, and what it has cost.

Always true: a run that cannot be read has a row that says why, and the others are shown.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass

from rewardflow.drawing.markup import Child, Markup, tag
from rewardflow.drawing.scales import figure
from rewardflow.report.page_frame import Live, framed_page
from rewardflow.report.page_parts import section, table
from rewardflow.report.run_data import RunData
from rewardflow.report.run_figures import figures_of

_STATES = {"running": "running", "finished": "finished", "open": "no end recorded"}
_HEADINGS = ("run", "state", "step", "reward", "exposed reward time", "cost", "failed verdicts", "compare")


@dataclass(frozen=True, slots=True)
class RunRow:
    """What the page shows of one run, or why it cannot be read."""

    key: str
    cells: tuple[str, ...] = ()
    state: str = ""
    problem: str = ""


def row_of(key: str, run: RunData) -> RunRow:
    figures = figures_of(run.steps)
    state = "stopped early" if run.state == "finished" and run.is_incomplete else _STATES[run.state]
    planned = run.planned_steps
    done = figures.num_trained or len(run.steps)
    cells = (
        f"{done:,}" if planned is None else f"{done:,} of {planned:,}",
        figure(figures.score_last),
        figure(figures.exposed_share, "%"),
        figure(figures.cost_usd, "$"),
        figure(figures.failed_share, "%"),
    )
    return RunRow(key, cells, state)


def runs_page(folder: str, rows: Sequence[RunRow], live: Live) -> str:
    running = sum(row.state == "running" for row in rows)
    if rows:
        content = section("runs", "Runs", table(_HEADINGS, [_cells(row) for row in rows]), _compare_button(len(rows)))
    else:
        content = section("runs", "Runs", lead="There is no run here yet. A run appears when it starts.")
    subtitle = tag("p", f"{len(rows)} {'run' if len(rows) == 1 else 'runs'}, {running} running", class_="subtitle")
    return framed_page(folder, subtitle, None, [content], made_by="rewardflow watch", live=live)


def url_of(key: str) -> str:
    return f"run?name={urllib.parse.quote(key, safe='')}"


def _cells(row: RunRow) -> list[Child]:
    if row.problem:
        return [row.key, "cannot be read", row.problem, *[""] * (len(_HEADINGS) - 3)]
    state = tag("span", row.state, class_=f"state {row.state.replace(' ', '-')}")
    box = tag("input", type="checkbox", data_run=row.key, aria_label=f"compare {row.key}")
    return [tag("a", row.key, href=url_of(row.key)), state, *row.cells, box]


def _compare_button(num_rows: int) -> Markup | None:
    if num_rows < 2:
        return None
    return tag("p", tag("button", "compare two runs", type="button", id="compare", disabled=True), class_="controls")
