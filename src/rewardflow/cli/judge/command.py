"""`rewardflow judge test`: judges labelled answers with one or several judges, and says how well each agrees.

Always true: what was paid for is in the journal, one run for each judge, so that the same command, started again, asks
only for what is missing; the page replaces the old one as a whole.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

import rewardflow as rf
from rewardflow.cli.display import prints_to_stderr, stderr_console, stdout_console
from rewardflow.cli.judge.paid_costs import loaded_parts, with_paid_costs
from rewardflow.cli.judge.shared_cap import SharedCap
from rewardflow.cli.options import add_agent_flags, options_of
from rewardflow.cli.safe_text import safe
from rewardflow.cli.score.command import DEFAULTS, make_agent, reward_of
from rewardflow.cli.score.scoring import ALL_SCORED, SOME_FAILED, score_all
from rewardflow.errors import InvalidInput
from rewardflow.judging.judge_test import JudgeTest, judge_test_of
from rewardflow.judging.labelled_answers import LABEL, LabelledAnswer, read_labelled_answers
from rewardflow.judging.probes import Probe, make_probes
from rewardflow.observe.private_file import write_private
from rewardflow.report.judges.judge_figures import figure_rows
from rewardflow.report.judges.judge_test_page import judge_test_page

if TYPE_CHECKING:
    from rich.console import Console

NUM_PROBES = 12
THRESHOLD = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="judge_command", required=True, metavar="COMMAND")
    test = commands.add_parser(
        "test",
        help="say how well judges agree with labelled answers, and what fools them",
        description=(
            "Judges every labelled answer with each judge, and probes (repeats, padded answers, attacks) about some\n"
            "of them, and writes a page that compares the judges. The same command, started again, pays for nothing\n"
            "twice. Exit code 0 if every answer was scored by every judge, 3 if not, 2 for bad usage, 130 if\n"
            "interrupted."
        ),
    )
    test.add_argument("judges", nargs="+", metavar="JUDGE", help="judge.yaml, file.py:name or package.module:name")
    test.add_argument("labels", metavar="LABELS", help="the labelled answers, .jsonl or .parquet")
    test.add_argument("--label", default=LABEL, metavar="COLUMN", help="the column of the labels (%(default)s)")
    test.add_argument("--scale", default="0:1", metavar="LOW:HIGH", help="the scale of the labels (%(default)s)")
    test.add_argument(
        "--threshold", type=float, default=THRESHOLD, help="scores and labels from here on are good (%(default)s)"
    )
    test.add_argument(
        "--probes", type=int, default=NUM_PROBES, metavar="N", help="answers for each kind of probe (%(default)s)"
    )
    test.add_argument("--out", default="judge_test.html", metavar="FILE", help="the page to write (%(default)s)")
    test.add_argument(
        "--journal", dest="agent_journal", metavar="PATH", help="keeps what was paid for (OUT.journal.db)"
    )
    test.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    add_agent_flags(test, without=("journal", "run", "reuse"), defaults=DEFAULTS)


def run(args: argparse.Namespace) -> int:
    low, high = _scale(args.scale)
    if not 0 < args.threshold <= 1:
        raise InvalidInput(f"--threshold must lie in (0, 1], got {args.threshold}")
    out = Path(args.out)
    if not out.absolute().parent.is_dir():
        raise InvalidInput(f"--out must lie in a folder that exists, got {out}")
    names = _names(args.judges)
    answers = read_labelled_answers(args.labels, column=args.label, low=low, high=high)
    console = stderr_console()
    journals = {name: _journal_of(judge, args) for judge, name in zip(args.judges, names, strict=True)}
    cap = SharedCap(options_of(args).get("max_cost_usd"), journals)
    with prints_to_stderr(applies=args.json):
        tests = [
            _test(judge, name, answers, args, cap, console) for judge, name in zip(args.judges, names, strict=True)
        ]
    write_private(out, judge_test_page(tests, source=Path(args.labels).name, threshold=args.threshold).encode())
    if args.json:
        report = {"labels": args.labels, "threshold": args.threshold, "judges": [test.to_json() for test in tests]}
        sys.stdout.write(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        _show(tests, out)
    return ALL_SCORED if all(test.scored == test.answers for test in tests) else SOME_FAILED


def _journal_of(judge: str, args: argparse.Namespace) -> Path | None:
    _, from_file = reward_of(judge)
    path = {"journal": _default_journal(args), **from_file, **options_of(args)}["journal"]
    return None if path is None else Path(path)


def _default_journal(args: argparse.Namespace) -> str:
    return f"{args.out}.journal.db"


def _test(
    judge: str,
    name: str,
    answers: Sequence[LabelledAnswer],
    args: argparse.Namespace,
    cap: SharedCap,
    console: Console,
) -> JudgeTest:
    probes = make_probes(answers, num_probes=args.probes, threshold=args.threshold, sees_groups=_sees_groups(judge))
    # A repeat must be asked for, so verdicts on equal texts are not shared.
    options = cap.options_for(name)
    agent, journal = make_agent(judge, args, journal=_default_journal(args), run=name, reuse="sample", **options)
    rollouts = _rollouts(probes)
    console.print(f"{safe(name)}: {len(answers):,} answers, {len(rollouts) - len(answers):,} in probes", soft_wrap=True)
    if told := cap.used_by_others(name):
        console.print(told, soft_wrap=True)
    scoring = asyncio.run(score_all(agent, rollouts, console))
    cap.count(name, scoring.statistics.ledger)
    halted = None if scoring.halted is None else str(scoring.halted)
    rewards = with_paid_costs(scoring.rewards, judge, journal=journal, run=name)
    return judge_test_of(name, probes, rewards, threshold=args.threshold, halted=halted)


def _rollouts(probes: Sequence[Probe]) -> list[rf.Rollout]:
    """Returns every rollout once: the probes of a labelled group share theirs."""
    return list({rollout.place: rollout for probe in probes for rollout in probe.rollouts}.values())


def _sees_groups(judge: str) -> bool:
    return any(part.unit == "group" for part in loaded_parts(judge))


def _names(judges: Sequence[str]) -> list[str]:
    """Returns a short name for each judge, and the full one where the short one is not unique."""
    short = [Path(judge).stem if judge.endswith((".yaml", ".yml")) else judge for judge in judges]
    names = [judge if short.count(name) > 1 else name for judge, name in zip(judges, short, strict=True)]
    if len(set(names)) < len(names):
        raise InvalidInput(f"each judge must be given once, got {', '.join(judges)}")
    return names


def _scale(text: str) -> tuple[float, float]:
    low, colon, high = text.partition(":")
    try:
        return float(low), float(high if colon else "")
    except ValueError:
        raise InvalidInput(f"--scale must be LOW:HIGH, got {text!r}") from None


def _show(tests: Sequence[JudgeTest], out: Path) -> None:
    from rich.table import Table

    console = stdout_console()
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    for _ in tests:
        grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row("", *(safe(test.name) for test in tests), "")
    for row in figure_rows(tests):
        grid.add_row(row.name, *row.texts, row.note)
    console.print(grid)
    for test in tests:
        if test.halted is not None:
            console.print(safe(f"{test.name} stopped early: {test.halted}"), soft_wrap=True)
    console.print(f"\npage:  {safe(str(out))}", soft_wrap=True)
