"""`rewardflow bench`: measures, and shows each figure beside its yardstick and what was promised of it.

Always true: a figure is shown as soon as it is known; a promise that does not hold is marked and changes no exit code,
because a benchmark is not a test.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import orjson
from rich.table import Table
from rich.text import Text

from rewardflow.bench.agent import run_agent_benchmarks
from rewardflow.bench.judge import run_judge_benchmarks
from rewardflow.bench.rows import Row
from rewardflow.cli.display import stdout_console
from rewardflow.errors import InvalidInput

if TYPE_CHECKING:
    from rich.console import Console

_HEADINGS = ("benchmark", "value", "yardstick", "ratio", "promised", "holds")
# Of all columns but the first, which takes what is left.
_WIDTHS = (14, 30, 7, 16, 5)
_NARROW_WIDTHS = (11, 18, 6, 9, 5)
_WIDE = 100
_LEAST_NAME_WIDTH = 20
_BENCHMARKS = {"agent": run_agent_benchmarks, "judge": run_judge_benchmarks}
_BAR = re.compile(r"(<=|>=) *([0-9][0-9,]*(?:\.[0-9]+)?)")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "bench",
        help="measure what the agent and a call to a judge cost, and how close they come to their bounds",
        description="Measures on this machine. Leave it alone meanwhile: a busy machine gives worse figures.",
    )
    parser.add_argument(
        "what",
        choices=list(_BENCHMARKS),
        metavar="WHAT",
        help="what to measure: agent (what it costs by itself), judge (over HTTP, against the mock judge)",
    )
    parser.add_argument("--quick", action="store_true", help="leave out what only steadies the figures")
    parser.add_argument("--json", action="store_true", help="print all rows as one JSON object at the end")


def run(args: argparse.Namespace) -> int:
    rows = _BENCHMARKS[args.what](quick=args.quick)
    if args.json:
        write_json(rows)
    else:
        write_table(rows, stdout_console())
    return 0


def write_json(rows: Iterable[Row]) -> None:
    report = {"rows": [row.to_json() for row in rows]}
    sys.stdout.write(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode() + "\n")


def write_table(rows: Iterable[Row], console: Console) -> None:
    """Line by line: a table that must know all of its rows first would keep people waiting for minutes."""
    console.print(_line(_HEADINGS, console.width, style="bold"))
    for row in rows:
        console.print(_line(_cells(row), console.width))


def holds(row: Row) -> bool | None:
    """Whether what was promised is kept; None where nothing was, or there is nothing to hold against it."""
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


def _cells(row: Row) -> tuple[str | Text, ...]:
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
    table = Table.grid(padding=(0, 1))
    widths = _WIDTHS if width >= _WIDE else _NARROW_WIDTHS
    for column_width in (max(width - sum(widths) - len(widths), _LEAST_NAME_WIDTH), *widths):
        table.add_column(width=column_width, overflow="fold")
    table.add_row(*cells, style=style)
    return table
