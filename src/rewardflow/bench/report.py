"""`rewardflow bench report`: measures what reading a long run costs.

Always true: the run, with all of its events, is written before the clock starts; the time of a page is that from the
directory to the text of the page. The journal has fewer rows than the run had calls, because sampling by id costs the
same whatever their number.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import orjson

from rewardflow.bench.benchmark_row import BenchmarkRow
from rewardflow.bench.long_run import write_long_run
from rewardflow.report.rollouts.rollout_sample import sample_rollouts
from rewardflow.report.run_data import read_run
from rewardflow.report.run_page import run_page
from rewardflow.report.trace import trace_of

STEPS = 1000
CALLS_A_STEP = 5000
_JOURNAL_ROWS = 20_000


def run_report_benchmarks(*, quick: bool = False) -> Iterator[BenchmarkRow]:
    """Yields rows. The run needs 4 GB of the temporary folder for a minute; `quick` writes a tenth of the steps."""
    steps = STEPS // 10 if quick else STEPS
    with tempfile.TemporaryDirectory(prefix="rewardflow-bench-") as folder:
        path = Path(folder) / "run"
        write_long_run(path, steps=steps, calls_a_step=CALLS_A_STEP, journal_rows=_JOURNAL_ROWS)
        yield from measure_report(path, steps=steps, calls_a_step=CALLS_A_STEP)


def measure_report(path: Path, *, steps: int, calls_a_step: int) -> Iterator[BenchmarkRow]:
    aggregates_s = _timed_reading(path)
    started_s = time.perf_counter()
    run = read_run(path)
    page = run_page(run, sample_rollouts(run))
    page_s = time.perf_counter() - started_s
    yield BenchmarkRow(
        name=f"a page of {steps:,} steps and {steps * calls_a_step:,} calls",
        value=page_s,
        unit="s",
        yardstick=aggregates_s,
        yardstick_name="to read and decode its aggregates",
        bar="<= 10",
    )
    yield BenchmarkRow(name="its size", value=len(page.encode()) / 1e6, unit="MB")
    started_s = time.perf_counter()
    trace = trace_of(run, range(steps // 2, steps // 2 + 2))
    trace_s = time.perf_counter() - started_s
    yield BenchmarkRow(name=f"a trace of 2 steps of it ({len(trace.events):,} events)", value=trace_s, unit="s")


def _timed_reading(path: Path) -> float:
    started_s = time.perf_counter()
    for name in ("steps.jsonl", "metrics.jsonl"):
        for line in (path / name).read_bytes().splitlines():
            orjson.loads(line)
    return time.perf_counter() - started_s
