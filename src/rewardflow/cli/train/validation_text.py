"""Describes a validation in a few words, for displays.

Always true: a text names the number of failed verdicts if there are any; names from the data cannot control the
terminal.
"""

from __future__ import annotations

from rewardflow.flow.validation.measurement import ValidationStatistics
from rewardflow.flow.validation.validation_report import ValidationFigures, ValidationReport


def validation_text(report: ValidationReport) -> str:
    return f"version {report.version:,}: {figures_text(report.overall)}"


def figures_text(figures: ValidationFigures) -> str:
    parts = [f"score {number(figures.score_mean)}", f"{share(figures.pass_share)} passed"]
    parts += [f"pass@{one.k} {number(one.value)}" for one in figures.pass_at]
    num_failed = figures.num_rollouts - figures.num_scored
    if num_failed:
        parts.append(f"{num_failed:,} of {figures.num_rollouts:,} verdicts failed and left out")
    return ", ".join(parts)


def under_way_text(statistics: ValidationStatistics) -> str:
    whole = f"{statistics.num_rollouts:,}"
    if statistics.num_generated < statistics.num_rollouts:
        return f"of version {statistics.version:,}: {statistics.num_generated:,} of {whole} generated"
    return f"of version {statistics.version:,}: {statistics.num_judged:,} of {whole} judged"


def number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"


def share(value: float | None) -> str:
    return "none" if value is None else f"{value:.0%}"
