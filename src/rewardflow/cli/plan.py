"""`rewardflow plan`: simulates how long each schedule would take, before a run starts.

Always true: the command sends nothing and loads no model; with `--json` stdout holds one JSON object and nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from rewardflow.cli.display import stderr_console, stdout_console
from rewardflow.cli.narrow_table import fitted
from rewardflow.cli.safe_text import safe
from rewardflow.errors import InvalidInput
from rewardflow.observe.private_file import write_private
from rewardflow.plan.formatting import (
    COMPARED_HEADINGS,
    HEADINGS,
    TableLine,
    comparison_line,
    floors_text,
    gain_text,
    schedule_lines,
)
from rewardflow.plan.plan_file import load_plan
from rewardflow.plan.plan_page import plan_page
from rewardflow.plan.planner import Plan, make_plan

if TYPE_CHECKING:
    from rich.console import Console

# Flags for the settings that people change most; all others are KEY=VALUE.
# Columns that a narrow terminal does without, in this order.
FIRST_TO_GO: Final = ("in flight", "stale", "busy", "cost", "binds", "exposed", "published step", "points off")

_FLAGS: Final = {
    "prompts": ("prompts", "N", "prompts a step"),
    "responses": ("responses", "N", "responses a prompt"),
    "mini-batches": ("mini_batches", "N", "mini-batches a step"),
    "generation-s": ("device.generation_s", "S", "seconds of generation a step"),
    "log-probs-s": ("device.log_probs_s", "S", "seconds of log-probs a step"),
    "update-s": ("device.update_s", "S", "seconds of forward and backward a step"),
    "slots": ("service.slots", "N", "calls at once"),
    "rpm": ("service.rpm", "X", "requests a minute"),
    "latency": (
        "service.latency",
        "DIST",
        "seconds a call: uniform:1,40, lognormal:5,1, journal:PATH, ...",
    ),
    "failures": ("service.failures", "SHARE", "the share of calls that fail and may be retried"),
    "price-usd": ("service.price_usd", "X", "the price of a call"),
    "steps": ("steps", "N", "steps of the run, for its total time and cost"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs the loop and the reward agent on a clock that jumps, with a generator, a trainer and a service that\n"
        "only take time, under every schedule. Settings come from a run or journal (--from), a file and the\n"
        "command line, each going before the one before; docs/planning.md explains them."
    )
    parser.add_argument("plan_file", nargs="?", metavar="PLAN", help="the settings, a .yaml file")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="a setting to change, such as service.slots=512"
    )
    parser.add_argument(
        "--from", dest="measured", metavar="PATH", help="a run directory or a journal to take measured values from"
    )
    for flag, (_, metavar, text) in _FLAGS.items():
        parser.add_argument(f"--{flag}", metavar=metavar, help=text)
    parser.add_argument(
        "--as-original", action="store_true", help="also simulate the behaviour of the original experiment"
    )
    parser.add_argument("--html", metavar="FILE", help="write a page with the timelines of two steps of each schedule")
    parser.add_argument("--processes", type=int, metavar="N", help="simulate in N processes (one for each core)")
    parser.add_argument("--json", action="store_true", help="print the plan as one JSON object")


def run(args: argparse.Namespace) -> int:
    plan_file, overrides = _sorted_out(args.plan_file, args.overrides)
    if args.processes is not None and args.processes < 1:
        raise InvalidInput(f"--processes must be at least 1, got {args.processes}")
    if args.html is not None:
        _check_place(Path(args.html))
    settings = load_plan(plan_file, [*overrides, *_from_flags(args)], measured=args.measured)
    with _progress() as tell:
        plan = make_plan(settings, processes=args.processes or os.cpu_count() or 1, tell=tell)
    if args.json:
        sys.stdout.write(orjson.dumps(plan.to_json(), option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        _show(plan, stdout_console())
    if args.html is not None:
        title = f"Plan: {plan_file or args.measured or 'a training run'}"
        write_private(Path(args.html), plan_page(plan, title=title).encode())
    return 0


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Shows how many simulations are done, in one line of a terminal."""
    console = stderr_console()
    if not console.is_terminal or console.is_dumb_terminal:
        yield lambda done, expected: None
        return
    with console.status("simulating") as status:
        yield lambda done, expected: status.update(f"simulating: {done} of {expected} done")


def _check_place(page: Path) -> None:
    """Checks the page's path before minutes of simulation, not after them."""
    if not page.parent.is_dir():
        raise InvalidInput(f"--html must name a file in a folder that exists, got {page}")
    if page.is_dir():
        raise InvalidInput(f"--html must name a file, got the folder {page}")
    if not os.access(page if page.exists() else page.parent, os.W_OK):
        raise InvalidInput(f"--html must name a file that can be written, got {page}")


def _sorted_out(plan_file: str | None, overrides: Sequence[str]) -> tuple[str | None, list[str]]:
    """Separates the plan file from the overrides: without a file the first word is an override."""
    if plan_file is not None and "=" in plan_file and not Path(plan_file).exists():
        return None, [plan_file, *overrides]
    return plan_file, list(overrides)


def _from_flags(args: argparse.Namespace) -> list[str]:
    given: dict[str, Any] = {key: getattr(args, flag.replace("-", "_")) for flag, (key, _, _) in _FLAGS.items()}
    flags = [f"{key}={value}" for key, value in given.items() if value is not None]
    return [*flags, "as_original=true"] if args.as_original else flags


def _show(plan: Plan, console: Console) -> None:
    _print_table(console, HEADINGS, schedule_lines(plan.rows, plan.recommended.schedule))
    if plan.as_original:
        console.print("\nAs the original did it:")
        _print_table(console, HEADINGS, schedule_lines(plan.as_original))
    if plan.published:
        console.print("\nBeside published runs, a step and its change:")
        _print_table(console, COMPARED_HEADINGS, [comparison_line(one) for one in plan.published])
    if plan.tiers:
        console.print("\nOther tiers of the service, each with its best schedule:")
        rows = [replace(tier.best, schedule=f"{tier.name}: {tier.best.schedule}") for tier in plan.tiers]
        _print_table(console, HEADINGS, schedule_lines(rows))
    console.print(f"\n{floors_text(plan.floors)}")
    console.print(f"\nWhat one more unit would buy {plan.recommended.schedule}:")
    for gain in plan.gains:
        console.print(f"  {gain_text(gain, plan.recommended.step_s)}")
    console.print(f"\n{plan.recommendation}")


def _print_table(console: Console, headings: Sequence[str], lines: Sequence[TableLine]) -> None:
    from rich.table import Table

    texts = [[safe(text) for text in line.texts] for line in lines]
    shown = fitted(headings, texts, width=console.width, first_to_go=FIRST_TO_GO)
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    for number, heading in enumerate(shown.headings):
        table.add_column(heading, justify="left" if number == 0 else "right", no_wrap=True)
    for line, row in zip(lines, shown.rows, strict=True):
        table.add_row(*row, style="bold" if line.is_emphasised else "")
    console.print(table)
    if shown.left_out:
        console.print(f"No room for: {', '.join(shown.left_out)}. A wider terminal or --json shows them.", style="dim")
