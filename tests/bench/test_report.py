"""What reading a long run costs."""

from __future__ import annotations

from pathlib import Path

from rewardflow.bench.long_run import write_long_run
from rewardflow.bench.report import measure_report


def test_page_size_and_trace_are_measured(tmp_path: Path) -> None:
    write_long_run(tmp_path / "run", steps=4, calls_a_step=20, journal_rows=50)
    page, size, trace = measure_report(tmp_path / "run", steps=4, calls_a_step=20)
    assert page.name == "a page of 4 steps and 80 calls"
    assert page.bar == "<= 10"
    assert min(page.value, size.value, trace.value) > 0
