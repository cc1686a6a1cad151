"""Shows a run under other judges: the files that `rewardflow rejudge` wrote into the run's directory.

Always true: a file that is not such a record is an error with its place; figures that do not exist are dashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import orjson

from rewardflow.drawing.charts import Chart, Series, line_chart
from rewardflow.drawing.markup import Markup, tag
from rewardflow.drawing.scales import figure
from rewardflow.errors import InvalidInput
from rewardflow.judging.agreement import Estimate
from rewardflow.observe.run_directory import REJUDGED_FOLDER
from rewardflow.report.fields import Fields
from rewardflow.report.judges.judge_figures import estimate_text
from rewardflow.report.page_parts import section, table

ROWS = (
    ("correlation", "rank correlation of both scores"),
    ("shift", "mean of the other score minus this one"),
    ("pairs_in_order", "of two answers to one question, in the run's order"),
    ("sign_changes", "share of advantages with another sign"),
    ("best_changes", "share of groups with another best answer"),
)


def read_rejudgings(run_dir: Path) -> list[Fields]:
    """Returns the records of a run directory, by name."""
    records = []
    for file in sorted((run_dir / REJUDGED_FOLDER).glob("*.json")):
        try:
            data = orjson.loads(file.read_bytes())
        except ValueError as error:
            raise InvalidInput(f"{file} must be a record of `rewardflow rejudge`: {error}") from error
        if not isinstance(data, dict):
            raise InvalidInput(f"{file} must be a record of `rewardflow rejudge`, got {data!r:.80}")
        records.append(Fields(data, str(file)))
    return records


def rejudged_section(records: Sequence[Fields]) -> Markup | None:
    if not records:
        return None
    rows = [[name.replace("_", " "), *(_estimate(one, name) for one in records), note] for name, note in ROWS]
    rows.append(["rollouts", *(figure(one.count("rollouts")) for one in records), "that both judges scored"])
    rows.append(["cost", *(figure(one.number("cost_usd"), "$") for one in records), "of the other judge"])
    drawn = [chart for one in records if (chart := _chart(one)) is not None]
    lead = "The same rollouts under another judge. One line falls where the other rises: the policy exploits a judge."
    parts = (table(["", *(one.text("reward") for one in records), ""], rows), tag("div", drawn, class_="charts"))
    return section("rejudged", "Under other judges", parts, lead=lead)


def _estimate(record: Fields, name: str) -> str:
    inner = record.inner(name)
    value = inner.number("value")
    return estimate_text(None if value is None else Estimate(value, inner.number("low"), inner.number("high")))


def _chart(record: Fields) -> Markup | None:
    steps = record.all_inner("steps")
    if len(steps) < 2:
        return None
    return line_chart(
        Chart(
            title=f"Mean score, and under {record.text('reward')}",
            xs=[float(one.count("step")) for one in steps],
            series=[
                Series(name="the run's judge", values=[one.number("score") for one in steps]),
                Series(name=record.text("reward"), values=[one.number("other") for one in steps], tone="tone-2"),
            ],
        )
    )
