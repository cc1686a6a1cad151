"""`rewardflow report`: writes an HTML page or a trace of a run, or compares two runs.

Always true: the command never changes the run; it writes a whole file or none, which only its owner may read; it opens
no path that a file of the run names.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from rewardflow.cli.safe_text import safe
from rewardflow.errors import InvalidInput
from rewardflow.observe.private_file import write_private

if TYPE_CHECKING:
    from rewardflow.report.run_data import RunData


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Makes one HTML file that needs no network from a run's directory (docs/report.md). A run that goes on is\n"
        "shown as far as it has come."
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", nargs="?", help="the run's directory")
    parser.add_argument("--compare", nargs=2, metavar=("RUN_A", "RUN_B"), help="compare two runs instead")
    parser.add_argument(
        "--out", metavar="FILE", help="the page to write (RUN_DIR/report.html; comparison.html for two runs)"
    )
    parser.add_argument("--no-rollouts", action="store_true", help="leave out all texts of models and judges")
    parser.add_argument("--journal", metavar="FILE", help="take rollouts from this journal (RUN_DIR/journal.db)")
    parser.add_argument("--trace", metavar="FILE", help="also write a trace for chrome://tracing or Perfetto")
    parser.add_argument("--steps", metavar="A:B", help="the trace's steps, from A to B (the latest that fit)")
    parser.add_argument("--json", action="store_true", help="print the run's figures as one JSON object; write no page")


def run(args: argparse.Namespace) -> int:
    if (args.run_dir is None) == (args.compare is None):
        raise InvalidInput("report takes a RUN_DIR, or --compare with two of them")
    if args.steps is not None and args.trace is None:
        raise InvalidInput(f"--steps is for a --trace, got --steps {args.steps}")
    if args.compare is not None:
        return _compare(args)
    steps = None if args.steps is None else parse_steps(args.steps)
    from rewardflow.report.run_data import read_run

    data = read_run(args.run_dir)
    if args.json:
        _print_figures([data])
    else:
        _write_page(data, args)
    if args.trace is not None:
        _write_trace(data, steps, args)
    return 0


def _compare(args: argparse.Namespace) -> int:
    from rewardflow.report.run_data import read_run
    from rewardflow.report.run_page import comparison_page

    if args.trace is not None:
        raise InvalidInput("--trace is of one run: give a RUN_DIR instead of --compare")
    one, other = (read_run(path) for path in args.compare)
    if args.json:
        _print_figures([one, other])
        return 0
    out = Path(args.out or "comparison.html")
    _write(out, comparison_page(one, other).encode())
    sys.stdout.write(f"wrote {safe(str(out))}\n")
    return 0


def _write_page(data: RunData, args: argparse.Namespace) -> None:
    from rewardflow.report.rollouts.rollout_sample import RolloutSample, sample_rollouts
    from rewardflow.report.run_page import run_page

    left_out = RolloutSample(rollouts=(), origin="Left out of this page.")
    journal = None if args.journal is None else Path(args.journal)
    sample = left_out if args.no_rollouts else sample_rollouts(data, journal=journal)
    out = Path(args.out) if args.out else data.directory.path / "report.html"
    _write(out, run_page(data, sample).encode())
    sys.stdout.write(f"wrote {safe(str(out))}\n")


def _write_trace(data: RunData, wanted: range | None, args: argparse.Namespace) -> None:
    from rewardflow.report.trace import trace_of

    trace = trace_of(data, wanted)
    _write(Path(args.trace), orjson.dumps(trace.to_json()))
    if not args.json:
        left_out = "" if trace.is_whole else "; some of its calls are left out: ask for fewer with --steps"
        steps = f"steps {trace.steps[0]} to {trace.steps[-1]}"
        sys.stdout.write(f"wrote {safe(args.trace)}: {steps}, {len(trace.events):,} events{left_out}\n")


def _print_figures(runs: list[RunData]) -> None:
    from rewardflow.report.run_figures import figures_of

    figures = [{"name": one.name, "state": one.state, **figures_of(one.steps).to_json()} for one in runs]
    report = figures[0] if len(figures) == 1 else {"runs": figures}
    sys.stdout.write(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode() + "\n")


def parse_steps(text: str) -> range:
    """Reads `A:B` as the steps from A to B."""
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if found is None or int(found[1]) > int(found[2]):
        raise InvalidInput(f"--steps must be A:B with A not above B, got {text!r}")
    return range(int(found[1]), int(found[2]) + 1)


def _write(path: Path, data: bytes) -> None:
    """Writes a file that only its owner may read: it may hold prompts and answers, as the run's own files do."""
    try:
        write_private(path, data)
    except OSError as error:
        raise InvalidInput(f"the file to write must be in a writable folder, got {path}: {error}") from error
