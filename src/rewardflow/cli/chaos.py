"""`rewardflow chaos`: tries to break the agent's promises, and shows what was tried, held and lost.

Always true: the exit code is 0 only if nothing was lost; each scenario that lost something is shown with a seed that
repeats its worst trial.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import orjson

from rewardflow.bench.chaos.campaign import LONG, SCENARIOS, run_scenario, scenarios_named
from rewardflow.bench.chaos.scenario import Tally
from rewardflow.cli.display import stderr_console, stdout_console
from rewardflow.errors import InvalidInput

if TYPE_CHECKING:
    from rich.console import Console

SEED = 16
_MAX_COMPLAINT_CHARS = 300
_EVERY_S = 1.0  # between two lines on the screen


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Tries to break the promises of docs/reliability.md with a hostile server, kills, a full disk and random "
        "budgets on this machine. Takes two to three minutes."
    )
    parser.add_argument(
        "--times", type=float, default=1.0, metavar="N", help="go on N times as long, with more trials of each scenario"
    )
    parser.add_argument("--long", action="store_true", help=f"go on for about an hour, as --times {LONG:g} does")
    parser.add_argument("--seed", type=int, default=SEED, metavar="N", help=f"the seed of each first trial ({SEED})")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help=f"only this scenario; may be repeated. One of {', '.join(scenario.name for scenario in SCENARIOS)}",
    )
    parser.add_argument("--trials", type=int, metavar="N", help="at most this many trials of each scenario")
    parser.add_argument("--json", action="store_true", help="print the table as one JSON object")


def run(args: argparse.Namespace) -> int:
    if args.trials is not None and args.trials < 1:
        raise InvalidInput(f"--trials must be at least 1, got {args.trials}")
    if not 0 < args.times < math.inf:
        raise InvalidInput(f"--times must be a positive number, got {args.times}")
    scenarios = scenarios_named(args.only)
    tallies = []
    for scenario in scenarios:
        seconds = scenario.seconds * (LONG if args.long else args.times)
        trials = run_scenario(scenario, seed=args.seed, seconds=seconds, max_trials=args.trials)
        tallies.append(_last(trials, stderr_console()))
    if args.json:
        sys.stdout.write(orjson.dumps([_as_json(tally) for tally in tallies], option=orjson.OPT_INDENT_2).decode())
        sys.stdout.write("\n")
    else:
        write_table(tallies, stdout_console())
    return 1 if any(tally.lost for tally in tallies) else 0


def _last(trials: Iterable[Tally], console: Console) -> Tally:
    """Shows a line about every second, and returns the sum of all trials."""
    last, shown_s = None, -_EVERY_S
    for last in trials:
        if last.elapsed_s - shown_s >= _EVERY_S:
            shown_s = last.elapsed_s
            console.print(_line(last), highlight=False, markup=False)
    assert last is not None  # a scenario has at least one trial
    if last.elapsed_s != shown_s:
        console.print(_line(last), highlight=False, markup=False)
    return last


def _line(tally: Tally) -> str:
    lost = f"{tally.lost:,} LOST" if tally.lost else "none lost"
    counts = f"{tally.num_trials:,} trials, {tally.elapsed_s:.0f} s, {tally.tried:,} {tally.scenario.unit}, {lost}"
    return f"{tally.scenario.name}: {counts}" + (f"; the last: {tally.note}" if tally.note else "")


def write_table(tallies: Sequence[Tally], console: Console) -> None:
    """Writes one row for each scenario, then the worst case of each that lost something."""
    from rich.table import Table

    table = Table("scenario", "promise", "tried", "held", "lost", title="what was tried, and what held")
    for tally in tallies:
        style = "bold red" if tally.lost else ""
        tried = f"{tally.tried:,} {tally.scenario.unit}"
        table.add_row(
            tally.scenario.name, tally.scenario.promise, tried, f"{tally.held:,}", str(tally.lost), style=style
        )
    console.print(table)
    for tally in tallies:
        if tally.lost:
            command = f"rewardflow chaos --only {tally.scenario.name} --seed {tally.worst_seed} --trials 1"
            complaint = tally.worst_complaint[:_MAX_COMPLAINT_CHARS]
            console.print(f"{tally.scenario.name}: {complaint}\n  repeat it: {command}", highlight=False, markup=False)


def _as_json(tally: Tally) -> dict[str, object]:
    return {
        "scenario": tally.scenario.name,
        "promise": tally.scenario.promise,
        "unit": tally.scenario.unit,
        "trials": tally.num_trials,
        "tried": tally.tried,
        "held": tally.held,
        "lost": tally.lost,
        "worst_seed": tally.worst_seed,
        "worst_complaint": tally.worst_complaint,
        "elapsed_s": round(tally.elapsed_s, 1),
    }
