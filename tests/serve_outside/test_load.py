"""`rewardflow bench serve` measures what it says; how fast this machine is does not matter here."""

from __future__ import annotations

from rewardflow.bench.serving import run_serve_benchmarks


def test_every_figure_is_measured_and_every_verdict_was_checked() -> None:
    rows = list(run_serve_benchmarks(quick=True))
    assert [row.unit for row in rows] == ["verdicts/s", "us/verdict", "MB", "verdicts/s", "calls", "s"]
    assert all(row.value > 0 for row in rows)
