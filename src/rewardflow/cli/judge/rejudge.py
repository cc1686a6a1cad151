"""`rewardflow rejudge`: judges the rollouts of a finished or running run with another judge.

Always true: the run is only read; figures and what was paid for are in a folder of their own in the run's directory, so
that the same command, started again, asks only for what is missing, and `rewardflow report` shows the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from pathlib import Path

import orjson

from rewardflow.cli.display import dollars, prints_to_stderr, stderr_console, stdout_console, three_columns
from rewardflow.cli.judge.paid_costs import with_paid_costs
from rewardflow.cli.options import add_agent_flags
from rewardflow.cli.report.command import parse_steps
from rewardflow.cli.safe_text import safe
from rewardflow.cli.score.command import DEFAULTS, make_agent
from rewardflow.cli.score.scoring import ALL_SCORED, SOME_FAILED, score_all
from rewardflow.judging.rejudging import Rejudging, rejudging_of
from rewardflow.judging.run_rollouts import read_judged_rollouts, sampled_groups
from rewardflow.observe.private_file import write_private
from rewardflow.observe.run_directory import JOURNAL_FILE, REJUDGED_FOLDER
from rewardflow.report.judges.judge_figures import estimate_text
from rewardflow.report.judges.rejudged_section import ROWS
from rewardflow.report.run_data import read_run

_RUN = "rejudge"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Judges the rollouts of a run with another reward, and says what would have changed: correlation, signs of\n"
        "advantages, order within groups. `rewardflow report RUN_DIR` shows the figures. The same command, started\n"
        "again, pays for nothing twice, and for a running run it judges what has come since. Exit code 0 if every\n"
        "rollout was scored, 3 if not, 2 for bad usage, 130 if interrupted."
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", help="the run's directory")
    parser.add_argument("--reward", required=True, metavar="R", help="judge.yaml, file.py:name or package.module:name")
    parser.add_argument("--name", metavar="NAME", help="the name of this judge in the report (from --reward)")
    parser.add_argument("--steps", metavar="A:B", help="only the steps from A to B")
    parser.add_argument("--groups", type=int, metavar="N", help="only N groups, drawn at random and always the same")
    parser.add_argument("--component", metavar="NAME", help="compare with this reward of the run, if it sums several")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    add_agent_flags(parser, without=("journal", "run", "run_dir"), defaults=DEFAULTS)


def run(args: argparse.Namespace) -> int:
    data = read_run(args.run_dir)
    folder = data.directory.path / REJUDGED_FOLDER
    name = args.name or Path(args.reward).stem
    file_name = re.sub(r"[^\w.-]+", "_", name)
    run_name = data.agent_settings.get("run")
    before = read_judged_rollouts(
        data.directory.path / JOURNAL_FILE,
        run=run_name if isinstance(run_name, str) else None,
        component=args.component,
        steps=None if args.steps is None else parse_steps(args.steps),
    )
    if args.groups is not None:
        before = sampled_groups(before, args.groups)
    folder.mkdir(mode=0o700, exist_ok=True)
    console = stderr_console()
    with prints_to_stderr(applies=args.json):
        agent, journal = make_agent(args.reward, args, journal=str(folder / f"{file_name}.journal.db"), run=_RUN)
        console.print(f"judging {len(before):,} rollouts again with {safe(args.reward)}", soft_wrap=True)
        scoring = asyncio.run(score_all(agent, [one.rollout for one in before], console))
        rewards = with_paid_costs(scoring.rewards, args.reward, journal=journal, run=_RUN)
    if scoring.halted is not None:
        console.print(f"stopped early: {safe(str(scoring.halted))}", soft_wrap=True)
    found = rejudging_of(name, before, rewards)
    write_private(folder / f"{file_name}.json", orjson.dumps(found.to_json(), option=orjson.OPT_INDENT_2))
    if args.json:
        sys.stdout.write(orjson.dumps(found.to_json(), option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        _show(found, args.run_dir)
    return ALL_SCORED if not found.failed else SOME_FAILED


def _show(found: Rejudging, run_dir: str) -> None:
    figures = [(name.replace("_", " "), estimate_text(getattr(found, name)), note) for name, note in ROWS]
    counts = f"in {found.groups:,} groups; {found.failed:,} without a verdict of the other judge"
    console = stdout_console()
    console.print(
        three_columns(
            [*figures, ("rollouts", f"{found.rollouts:,}", counts), ("cost", dollars(found.cost_usd), "of all of them")]
        )
    )
    console.print(f"\nthe page of the run shows them: rewardflow report {safe(run_dir)}", soft_wrap=True)
