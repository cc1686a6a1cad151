"""The page of all runs."""

from __future__ import annotations

from pathlib import Path

from written_runs import write_run

from rewardflow.report.page_frame import Live
from rewardflow.report.run_data import read_run
from rewardflow.watch.runs_page import RunRow, row_of, runs_page, url_of

LIVE = Live(every_s=2.0)


def test_a_row_tells_state_step_reward_exposed_time_cost_and_failures(tmp_path: Path) -> None:
    row = row_of("a", read_run(write_run(tmp_path / "a", steps=3).path))
    assert row.state == "no end recorded"
    assert row.cells == ("3 of 3", "0.75", "30 %", "$2.25", "50 %")


def test_a_run_that_cannot_be_read_says_why_and_the_others_are_shown(tmp_path: Path) -> None:
    good = row_of("good", read_run(write_run(tmp_path / "good", steps=1).path))
    page = runs_page("runs", [good, RunRow("<b>bad</b>", problem="run.json is <i>broken</i>")], LIVE)
    assert 'href="run?name=good"' in page
    assert "run.json is &lt;i&gt;broken&lt;/i&gt;" in page
    assert "<b>bad" not in page


def test_an_empty_folder_says_that_runs_appear_when_they_start() -> None:
    assert "A run appears when it starts" in runs_page("runs", [], LIVE)


def test_one_run_is_told_as_one() -> None:
    assert "1 run, 0 running" in runs_page("runs", [RunRow("a", problem="broken")], LIVE)
    assert "2 runs, 0 running" in runs_page("runs", [RunRow("a", problem="x"), RunRow("b", problem="x")], LIVE)


def test_a_name_is_one_value_of_its_url() -> None:
    assert url_of("a b/c&d=e") == "run?name=a%20b%2Fc%26d%3De"
