"""The directory of a long run that never was."""

from __future__ import annotations

from pathlib import Path

from rewardflow.bench.long_run import write_long_run
from rewardflow.observe.run_directory import read_events
from rewardflow.report.rollouts.rollout_sample import sample_rollouts
from rewardflow.report.run_data import read_run
from rewardflow.report.run_figures import figures_of
from rewardflow.report.trace import trace_of


def test_it_reads_as_a_run_of_that_size(tmp_path: Path) -> None:
    path = tmp_path / "run"
    write_long_run(path, steps=7, calls_a_step=20, journal_rows=600)
    assert len(list(read_events(path))) == 7 * 40
    run = read_run(path)
    figures = figures_of(run.steps)
    assert (figures.num_trained, figures.calls, figures.total_s) == (7, 140, 2100.0)
    assert sum(figures.seconds_by_kind.values()) == 2100.0
    assert len(sample_rollouts(run).rollouts) > 100
    calls = [event for event in trace_of(run, range(3, 4)).events if event["pid"] == 3 and event["ph"] == "X"]
    assert len(calls) == 20
