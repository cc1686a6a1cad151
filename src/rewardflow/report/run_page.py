"""Makes the HTML page of a run, and the page that compares two runs.

Always true: the page is one file that sends no request; every text of a model or a judge reaches it through
`drawing.markup` or as JSON, so that a browser shows it and never runs it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

from rewardflow.drawing.markup import Markup, tag
from rewardflow.report.agent_now import now_section, read_loads
from rewardflow.report.comparison import comparison_table
from rewardflow.report.curves import NamedSteps
from rewardflow.report.judges.audit_section import audit_section, read_audit, read_probings
from rewardflow.report.judges.rejudged_section import read_rejudgings, rejudged_section
from rewardflow.report.page_frame import Live, framed_page
from rewardflow.report.page_parts import section
from rewardflow.report.rollouts.rollout_sample import RolloutSample
from rewardflow.report.run_data import RunData
from rewardflow.report.run_figures import figures_of
from rewardflow.report.sections import (
    calls_section,
    cost_section,
    failures_section,
    headline,
    learning_section,
    time_section,
    timelines_section,
    validation_section,
    warnings_section,
)


def run_page(run: RunData, sample: RolloutSample, *, live: Live | None = None) -> str:
    figures = figures_of(run.steps)
    steps = [NamedSteps(name=run.name, steps=run.steps)]
    sections = [
        _empty_section(run),
        now_section(read_loads(run)),
        warnings_section(steps),
        time_section(steps, [figures]),
        timelines_section([run]),
        learning_section(steps),
        validation_section(steps),
        calls_section(steps, [figures]),
        cost_section(steps, [figures]),
        failures_section(steps, [figures]),
        audit_section(read_audit(run.directory.path), read_probings(run.directory.path)),
        rejudged_section(read_rejudgings(run.directory.path)),
        _rollouts_section(sample),
    ]
    rollouts = [dataclasses.asdict(one) for one in sample.rollouts]
    return framed_page(run.name, _subtitle(run), headline(run, figures), sections, rollouts=rollouts, live=live)


def comparison_page(one: RunData, other: RunData, *, live: Live | None = None) -> str:
    runs = [one, other]
    names = _told_apart(runs)
    figures = [figures_of(run.steps) for run in runs]
    steps = [NamedSteps(name=name, steps=run.steps) for name, run in zip(names, runs, strict=True)]
    sections = [
        warnings_section(steps),
        time_section(steps, figures),
        timelines_section(runs),
        learning_section(steps),
        validation_section(steps),
        calls_section(steps, figures),
        cost_section(steps, figures),
        failures_section(steps, figures),
    ]
    subtitle = tag("div", [_subtitle(run, name) for name, run in zip(names, runs, strict=True)])
    title = f"{names[0]} and {names[1]}"
    return framed_page(title, subtitle, comparison_table(names, figures), sections, live=live)


def _subtitle(run: RunData, name: str = "") -> Markup:
    directory = run.directory
    started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(directory.started_at))
    facts = [
        name,
        _state_text(run),
        f"started {started}",
        _schedule_text(run),
        f"rewardflow {directory.rewardflow_version}",
    ]
    return tag("p", " · ".join(fact for fact in facts if fact), class_="subtitle")


def _state_text(run: RunData) -> str:
    if run.state == "finished":
        return "stopped before its end" if run.is_incomplete else "finished"
    if run.last_written_at is None:
        return "running, nothing written yet" if run.state == "running" else "nothing written yet"
    written = time.strftime("%H:%M:%S UTC", time.gmtime(run.last_written_at))
    if run.state == "running":
        return f"running, last written at {written}"
    return f"no end recorded: it was killed, or runs on another machine; last written at {written}"


def _schedule_text(run: RunData) -> str:
    """Describes the schedule with the names of its settings."""
    schedule = run.settings.get("schedule")
    if not isinstance(schedule, dict):
        return ""
    names = ("groups_per_step", "mini_batches", "stream", "max_staleness")
    return ", ".join(f"{name} {schedule[name]}" for name in names if name in schedule)


def _empty_section(run: RunData) -> Markup | None:
    if run.steps:
        return None
    return section("empty", "Nothing yet", lead="No step has been judged or trained.")


def _rollouts_section(sample: RolloutSample) -> Markup:
    """Makes an empty section; the page's script fills it from the data, as text only."""
    if not sample.rollouts:
        return section("rollouts", "Rollouts", lead=sample.origin)
    filters = [
        tag("button", name, type="button", data_filter=key, aria_pressed="true" if key == "all" else "false")
        for key, name in (
            ("all", "all"),
            ("failed", "failed"),
            ("lowest", "lowest first"),
            ("highest", "highest first"),
        )
    ]
    controls = tag(
        "div",
        tag("div", filters, class_="filters", role="group", aria_label="which rollouts"),
        tag("label", "step ", tag("select", id="rollout-step")),
        tag("label", "containing ", tag("input", id="rollout-search", type="search", autocomplete="off")),
        tag("span", "", id="rollout-count", role="status"),
        class_="controls",
    )
    panes = tag(
        "div",
        tag("ol", id="rollout-list", role="listbox", tabindex=0, aria_label="rollouts"),
        tag("article", id="rollout-detail", aria_live="polite", tabindex=0),
        class_="panes",
    )
    hint = f"{sample.origin} With the list in focus: ↑ ↓ or k j to move, Home and End to jump."
    without = tag("noscript", tag("p", "The rollouts need JavaScript."))
    return section("rollouts", "Rollouts", controls, panes, without, lead=hint)


def _told_apart(runs: Sequence[RunData]) -> list[str]:
    """Returns the runs' names, or their paths if the names are the same."""
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.directory.path) for run in runs]
