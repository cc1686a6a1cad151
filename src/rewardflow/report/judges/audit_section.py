"""Shows the audit of a run: both judges' mean scores of the audited rollouts, alarms, and models that answered.

Always true: of a step the last line counts; a line of the wrong shape is an error with its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import orjson

from rewardflow.drawing.charts import Chart, Series, line_chart
from rewardflow.drawing.markup import Markup, tag
from rewardflow.drawing.scales import figure
from rewardflow.errors import InvalidInput
from rewardflow.observe.line_file import read_lines
from rewardflow.observe.run_directory import AUDIT_FILE, JUDGE_PROBES_FILE
from rewardflow.report.fields import Fields
from rewardflow.report.page_parts import section


def read_audit(run_dir: Path) -> list[Fields]:
    """Returns the lines of the audited steps, in order; none if the run has no audit."""
    path = run_dir / AUDIT_FILE
    if not path.exists():
        return []
    by_step: dict[int, Fields] = {}
    for number, line in read_lines(path):
        fields = Fields(line, f"{path}, line {number}")
        by_step[fields.count("step")] = fields
    return [by_step[step] for step in sorted(by_step)]


def read_probings(run_dir: Path) -> list[Fields]:
    """Returns each look at the training judge's scores of fixed answers; none if there was none."""
    path = run_dir / JUDGE_PROBES_FILE
    if not path.exists():
        return []
    try:
        found = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"{path} must be JSON: {error}") from None
    listed = found.get("probings") if isinstance(found, dict) else None
    return [Fields(one, f"{path}, probing {i}") for i, one in enumerate(listed if isinstance(listed, list) else ())]


def audit_section(lines: Sequence[Fields], probings: Sequence[Fields] = ()) -> Markup | None:
    audited = [line for line in lines if line.count("rollouts")]
    texts = (*_alarms(audited), *_failed(lines), *_models(lines), *_probed(probings))
    if not audited and not texts:
        return None
    notes = [tag("p", text, class_="lead") for text in texts]
    charts = tag("div", _chart(audited), class_="charts") if audited else ""
    lead = "A second judge scored a random share of the rollouts; nothing was trained on its verdicts."
    return section("audit", "Audit", notes, charts, lead=lead)


def _chart(audited: Sequence[Fields]) -> Markup:
    return line_chart(
        Chart(
            title="Mean score of the audited rollouts",
            xs=[float(line.count("step")) for line in audited],
            series=[
                Series(name="the training judge", values=[_mean(line, "training_sum") for line in audited]),
                Series(name="the audit", values=[_mean(line, "audit_sum") for line in audited], tone="tone-2"),
            ],
            note=f"{figure(sum(line.count('rollouts') for line in audited))} rollouts",
        )
    )


def _mean(line: Fields, name: str) -> float | None:
    total = line.number(name)
    return None if total is None else total / line.count("rollouts")


def _alarms(lines: Sequence[Fields]) -> list[str]:
    texts = []
    for line in lines:
        alarm = line.inner("alarm")
        if alarm.data:
            before, after = figure(alarm.number("training_before")), figure(alarm.number("training_after"))
            audit_before, audit_after = figure(alarm.number("audit_before")), figure(alarm.number("audit_after"))
            texts.append(
                f"Alarm at step {line.count('step')}: over {alarm.count('window')} steps the training judge's score "
                f"rose from {before} to {after}, and the audit's fell from {audit_before} to {audit_after}."
            )
    return texts


def _failed(lines: Sequence[Fields]) -> list[str]:
    """Says how many of the audited rollouts have no score of the audit."""
    num_failed = sum(line.count("failed") for line in lines)
    num_audited = num_failed + sum(line.count("rollouts") for line in lines)
    return [f"{num_failed:,} of {num_audited:,} verdicts of the audit failed."] if num_failed else []


def _probed(probings: Sequence[Fields]) -> list[str]:
    """Says whether the training judge scored the fixed answers as at the start, at the last look."""
    if not probings:
        return []
    last = probings[-1]
    moved = f"{last.count('moved')} of {last.count('told')} answers that could tell"
    means = f"mean {figure(last.number('mean_before'))} at the start, now {figure(last.number('mean_now'))}"
    if last.data.get("is_alarm"):
        return [f"The training judge changed before step {last.count('step')}: {moved} have moved away ({means})."]
    return [f"The training judge scored fixed answers as at the start, last at step {last.count('step')} ({means})."]


def _models(lines: Sequence[Fields]) -> list[str]:
    """Says at which step the answers began to name another model."""
    known: set[str] = set()
    texts = []
    for line in lines:
        named = set(line.inner("answered_by").by_name())
        if known and named - known:
            names = ", ".join(sorted(named - known))
            texts.append(f"The training judge changed at step {line.count('step')}: its answers name {names}.")
        known |= named
    return texts
