"""`rewardflow bench`: runs a benchmark and shows each figure beside its yardstick and its bar.

Always true: the table shows a figure as soon as it is measured; a bar that does not hold is marked and does not change
the exit code, because a benchmark is not a test.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from rewardflow.bench import plan_check, schedule_figures, schedules, trainer, trl_ways
from rewardflow.bench.agent import run_agent_benchmarks
from rewardflow.bench.benchmark_row import BenchmarkRow
from rewardflow.bench.judge import run_judge_benchmarks
from rewardflow.bench.judging.judging_rows import run_judging_benchmarks
from rewardflow.bench.learning import algorithms, copying_runs
from rewardflow.bench.padding.padded_training import run_padding_benchmarks
from rewardflow.bench.report import run_report_benchmarks
from rewardflow.bench.scale import run_scale_benchmarks
from rewardflow.bench.serving import run_serve_benchmarks
from rewardflow.cli.display import stdout_console
from rewardflow.errors import InvalidInput

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_HEADINGS = ("benchmark", "value", "yardstick", "ratio", "promised", "holds")
# Of all columns but the first, which takes the rest of the line.
_WIDTHS = (14, 30, 7, 16, 5)
_NARROW_WIDTHS = (11, 18, 6, 9, 5)
_WIDE = 100
_LEAST_NAME_WIDTH = 20
_BAR = re.compile(r"(<=|>=) *([0-9][0-9,]*(?:\.[0-9]+)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _SeededBenchmark:
    """A benchmark that trains once with each seed and whose JSON report holds more than its rows."""

    measure: Callable[..., Iterator[Any]]
    rows_of: Callable[[Iterable[Any]], Iterator[BenchmarkRow]]
    report_of: Callable[[Iterable[Any]], Mapping[str, Any]]
    seeds: Sequence[int]


_BENCHMARKS = {
    "agent": run_agent_benchmarks,
    "judge": run_judge_benchmarks,
    "padding": run_padding_benchmarks,
    "report": run_report_benchmarks,
    "scale": run_scale_benchmarks,
    "serve": run_serve_benchmarks,
}
_SEEDED_BENCHMARKS = {
    "schedules": _SeededBenchmark(
        measure=schedules.run_schedule_benchmarks,
        rows_of=schedule_figures.rows_of,
        report_of=schedule_figures.report_of,
        seeds=schedules.SEEDS,
    ),
    "plan": _SeededBenchmark(
        measure=plan_check.run_plan_benchmarks,
        rows_of=plan_check.rows_of,
        report_of=plan_check.report_of,
        seeds=plan_check.SEEDS,
    ),
    "learning": _SeededBenchmark(
        measure=copying_runs.run_learning_benchmarks,
        rows_of=copying_runs.rows_of,
        report_of=copying_runs.report_of,
        seeds=copying_runs.SEEDS,
    ),
    "algorithms": _SeededBenchmark(
        measure=algorithms.run_algorithm_benchmarks,
        rows_of=algorithms.rows_of,
        report_of=algorithms.report_of,
        seeds=algorithms.SEEDS,
    ),
}
_TRAINER = "trainer"
_TRL = "trl"
_OTHERS_IN = {trainer.TRL: (_TRAINER, _TRL), trainer.VERL: (_TRAINER,)}
_JUDGING = "judging"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Measures on this machine. Run nothing else meanwhile: a busy machine gives worse figures."
    parser.add_argument(
        "what",
        choices=[*_BENCHMARKS, _JUDGING, *_SEEDED_BENCHMARKS, _TRAINER, _TRL],
        metavar="WHAT",
        help="what to measure: agent (its own cost), judge (calls over HTTP to the mock judge), "
        "judging (calls saved by an escalation, alarms of an audit, 5 minutes), "
        "padding (training on rows of mixed lengths with and without it, 1 minute), "
        "scale (several processes on Ray), serve (verdicts over HTTP), "
        "report (the page of a run of 5 million calls), schedules (a training step under each, 10 minutes), "
        "plan (`rewardflow plan` against three real runs, 2 minutes), "
        "learning (whether overlapping makes it worse, hours; --quick: without corrections, 14 minutes), "
        "algorithms (whether each learns, 25 minutes), "
        "trainer (tokens a second beside TRL and verl, 2 minutes), "
        "trl (TRL with a slow judge in three ways, 10 minutes; --quick: step times alone)",
    )
    parser.add_argument("--quick", action="store_true", help="leave out repetitions that only make figures steadier")
    parser.add_argument(
        "--seeds",
        metavar="N,...",
        help="the seeds of benchmarks that train: one run with each (schedules, plan, algorithms: 0, learning: 0-19, "
        "trl: 0-4)",
    )
    for name, users in _OTHERS_IN.items():
        parser.add_argument(
            f"--{name}-python",
            metavar="PYTHON",
            help=f"{', '.join(users)}: the interpreter of an environment that has {name} (this one)",
        )
    parser.add_argument(
        "--judge-url", metavar="URL", help="judging: also measure what this OpenAI-style server reuses of prompts"
    )
    parser.add_argument("--judge-model", metavar="NAME", default="smollm2", help="its model (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print all rows as one JSON object at the end")


def run(args: argparse.Namespace) -> int:
    _check_options(args)
    if args.what == _TRAINER:
        return _run_trainer(args)
    if args.what == _TRL:
        return _run_trl(args)
    seeded = _SEEDED_BENCHMARKS.get(args.what)
    if seeded is not None:
        seeds = seeded.seeds if args.seeds is None else _parse_seeds(args.seeds)
        figures = seeded.measure(quick=args.quick, seeds=seeds)
        if args.json:
            _write(seeded.report_of(figures))
        else:
            write_table(seeded.rows_of(figures), stdout_console())
        return 0
    if args.what == _JUDGING:
        rows = run_judging_benchmarks(quick=args.quick, judge_url=args.judge_url, judge_model=args.judge_model)
    else:
        rows = _BENCHMARKS[args.what](quick=args.quick)
    if args.json:
        write_json(rows)
    else:
        write_table(rows, stdout_console())
    return 0


def _check_options(args: argparse.Namespace) -> None:
    seeded = (*_SEEDED_BENCHMARKS, _TRL)
    if args.seeds is not None and args.what not in seeded:
        raise InvalidInput(f"--seeds is for benchmarks that train ({', '.join(seeded)}), got bench {args.what}")
    if args.judge_url is not None and args.what != _JUDGING:
        raise InvalidInput(f"--judge-url is for bench {_JUDGING}, got bench {args.what}")
    for name, users in _OTHERS_IN.items():
        if getattr(args, f"{name}_python") is not None and args.what not in users:
            raise InvalidInput(f"--{name}-python is for bench {' and bench '.join(users)}, got bench {args.what}")


def _run_trainer(args: argparse.Namespace) -> int:
    contenders = trainer.programs(trl_python=args.trl_python, verl_python=args.verl_python)
    figures = trainer.run_trainer_benchmarks(contenders, quick=args.quick)
    if args.json:
        _write(trainer.report_of(figures))
    else:
        write_table(trainer.rows_of(figures), stdout_console())
    return 0


def _run_trl(args: argparse.Namespace) -> int:
    seeds = trl_ways.SEEDS if args.seeds is None else _parse_seeds(args.seeds)
    figures = trl_ways.run_trl_benchmark(python=args.trl_python, quick=args.quick, seeds=seeds)
    if args.json:
        _write(trl_ways.report_of(figures))
    else:
        write_table(trl_ways.rows_of(figures), stdout_console())
    return 0


def _parse_seeds(text: str) -> tuple[int, ...]:
    """Reads `0,3,7` and `0-19`."""
    seeds: list[int] = []
    for part in text.split(","):
        ends = [end.strip() for end in part.split("-")]
        if len(ends) > 2 or not all(end.isdecimal() for end in ends) or int(ends[0]) > int(ends[-1]):
            raise InvalidInput(
                f"--seeds must be whole numbers with commas between them, or ranges such as 0-19, got {text!r}"
            )
        seeds += range(int(ends[0]), int(ends[-1]) + 1)
    return tuple(seeds)


def write_json(rows: Iterable[BenchmarkRow]) -> None:
    _write({"rows": [row.to_json() for row in rows]})


def _write(report: Mapping[str, Any]) -> None:
    sys.stdout.write(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode() + "\n")


def write_table(rows: Iterable[BenchmarkRow], console: Console) -> None:
    """Writes each row as it comes: a table that needs all of its rows first would show nothing for minutes."""
    console.print(_line(_HEADINGS, console.width, style="bold"))
    for row in rows:
        console.print(_line(_cells(row), console.width))


def holds(row: BenchmarkRow) -> bool | None:
    """Returns whether a row keeps its bar; None if it has no bar or no figure to compare."""
    if not row.bar:
        return None
    bar = _BAR.fullmatch(row.bar)
    if bar is None:
        raise InvalidInput(f"a bar must be <= or >= and a number, got {row.bar!r} for {row.name!r}")
    measured = row.ratio if row.bar_on == "ratio" else row.value
    if measured is None:
        return None
    bound = float(bar[2].replace(",", ""))
    return measured <= bound if bar[1] == "<=" else measured >= bound


def _cells(row: BenchmarkRow) -> tuple[str | Text, ...]:
    from rich.text import Text

    is_kept = holds(row)
    yardstick = (
        row.yardstick_name if row.yardstick is None else f"{_figure(row.yardstick, row.unit)} {row.yardstick_name}"
    )
    verdict = {None: Text(""), True: Text("yes", "green"), False: Text("NO", "bold red")}[is_kept]
    return (
        row.name,
        _figure(row.value, row.unit),
        yardstick,
        "" if row.ratio is None else f"{row.ratio:.3g}",
        f"{row.bar_on} {row.bar}" if row.bar else "",
        verdict,
    )


def _figure(value: float, unit: str) -> str:
    number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{number} {unit}".rstrip()


def _line(cells: Iterable[str | Text], width: int, style: str = "") -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 1))
    widths = _WIDTHS if width >= _WIDE else _NARROW_WIDTHS
    for column_width in (max(width - sum(widths) - len(widths), _LEAST_NAME_WIDTH), *widths):
        table.add_column(width=column_width, overflow="fold")
    table.add_row(*cells, style=style)
    return table
