"""Two runs in one table."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from written_runs import write_run

from rewardflow.report.comparison import comparison_table
from rewardflow.report.run_data import read_run
from rewardflow.report.run_figures import figures_of


def test_a_change_is_told_and_whether_it_is_for_the_better(tmp_path: Path) -> None:
    one = figures_of(read_run(write_run(tmp_path / "run").path).steps)
    other = dataclasses.replace(one, step_s=5.0, retries=6, calls=18)
    table = comparison_table(["one", "other"], [one, other])
    assert "<td>10 s</td><td>5 s</td>" in table
    assert '<span class="better">-50.0 %</span>' in table
    assert '<span class="worse">+100.0 %</span>' in table
    assert "<span>+100.0 %</span>" in table


def test_of_a_score_below_zero_no_share_is_told(tmp_path: Path) -> None:
    one = dataclasses.replace(figures_of([]), score_last=-0.5)
    other = dataclasses.replace(one, score_last=0.25)
    table = comparison_table(["one", "other"], [one, other])
    assert "<td>-0.5</td><td>0.25</td><td></td>" in table


def test_what_neither_run_knows_has_no_row() -> None:
    table = comparison_table(["one", "other"], [figures_of([]), figures_of([])])
    assert "step time" not in table
