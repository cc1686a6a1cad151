"""`rewardflow score`: judges a file of answers with a reward agent and writes a file of verdicts.

Always true: whatever happens to the calls, the output has one row for each input row, in order, and no failure has a
score; every paid verdict is in the journal, so that the same command, started again, asks only for rows without a
score: those that it had not reached, and those that failed. An interrupt leaves the output file as it was; after an
outage, a spent budget or a full disk the command writes the verdicts that it has.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import rewardflow as rf
from rewardflow.answers import Answer, BadRow, JudgedAnswer, check_format, first_rows, read_answers, write_verdicts
from rewardflow.cli.display import prints_to_stderr, stderr_console
from rewardflow.cli.options import add_agent_flags, options_of
from rewardflow.cli.safe_text import safe
from rewardflow.cli.score.closing_report import report, summarise
from rewardflow.cli.score.scoring import ALL_SCORED, SOME_FAILED, Scoring, score_all
from rewardflow.errors import InvalidInput
from rewardflow.services.reward_file import load_reward_file

if TYPE_CHECKING:
    from rich.console import Console

NOT_SAVED = 1
BAD_ROWS_NAMED = 20

# People run a command again to repair failures, such as a wrong key or a judge that was down.
DEFAULTS: Mapping[str, Any] = {"replay_failures": False}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Judges every row of a JSONL or parquet file and writes one output row for each, in order. The same command,\n"
        "started again, pays for no score twice: it asks for rows that it had not reached and for rows that failed.\n"
        "Exit code 0 if all rows were scored, 3 if some failed, 1 if the output or the journal could not be written,\n"
        "2 for bad usage, 130 if interrupted."
    )
    parser.add_argument("answers", metavar="ANSWERS", help="the file of answers, .jsonl or .parquet")
    parser.add_argument("--reward", required=True, metavar="R", help="judge.yaml, file.py:name or package.module:name")
    parser.add_argument(
        "--out", required=True, metavar="FILE", help="the file of verdicts to write, .jsonl or .parquet"
    )
    parser.add_argument(
        "--journal",
        dest="agent_journal",
        metavar="PATH",
        help="the file that keeps what was paid for (OUT.journal.db); `none` for no journal",
    )
    parser.add_argument("--run", dest="agent_run", metavar="NAME", help="the run's name in the journal (default)")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N rows, and the rest of their groups")
    parser.add_argument("--strict", action="store_true", help="stop before the first call if there are bad rows")
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")
    parser.add_argument("--no-probe", action="store_true", help="start without asking about one answer first")
    add_agent_flags(parser, without=("journal", "run"), defaults=DEFAULTS)


def run(args: argparse.Namespace) -> int:
    answers_path, out = Path(args.answers), Path(args.out)
    with prints_to_stderr(applies=args.json):
        agent, journal = make_agent(args.reward, args, journal=f"{out}.journal.db")
    _check_paths(answers_path, out)
    rows = _read(answers_path, limit=args.limit)
    _name_bad_rows(rows, answers_path, strict=args.strict)
    answers = [row for row in rows if isinstance(row, Answer)]
    console = stderr_console()
    kept = f"; the journal is {safe(str(journal))}" if journal else "; there is no journal"
    what = f"{len(answers):,} answer{'' if len(answers) == 1 else 's'}"
    console.print(f"scoring {what} with {safe(args.reward)}{kept}", soft_wrap=True)
    try:
        rollouts = [answer.rollout for answer in answers]
        way_out = " (--no-probe starts without asking)"
        with prints_to_stderr(applies=args.json):
            scored = score_all(agent, rollouts, console, probes=not args.no_probe, way_out=way_out)
            scoring = asyncio.run(scored)
    except KeyboardInterrupt:
        console.print(_how_to_resume(journal), soft_wrap=True)
        raise
    judged = _judged(rows, scoring)
    written = _write(out, judged, answers_path, console)
    _report_problems(scoring, journal, console, is_written=written is not None)
    outcome = summarise(judged, scoring, out=written, journal=journal)
    report(outcome, as_json=args.json)
    if written != out or scoring.journal_problem is not None:
        return NOT_SAVED
    return ALL_SCORED if outcome.scored == len(rows) else SOME_FAILED


# ---- before the first call ----------------------------------------------------------------------------------------


def make_agent(
    name: str, args: argparse.Namespace, *, journal: str, **fixed: Any
) -> tuple[rf.RewardAgent, Path | None]:
    """Returns the agent for a named reward, and its journal's path. A flag overrides the file, `fixed` overrides both.

    `journal` is the path if neither the file nor a flag gives one.
    """
    reward, from_file = reward_of(name)
    options = {"journal": journal, **DEFAULTS, **from_file, **options_of(args), **fixed}
    agent = rf.RewardAgent(reward, **cast("Any", options))
    return agent, None if options["journal"] is None else Path(options["journal"])


def reward_of(name: str) -> tuple[Any, dict[str, Any]]:
    """Returns the reward of a file or a name, as an agent takes it, and the options that its file gives."""
    if not name.endswith((".yaml", ".yml")):
        return name, {}
    loaded = load_reward_file(name)
    return loaded.parts, loaded.options


def _check_paths(answers_path: Path, out: Path) -> None:
    """Refuses wrong paths now, before any verdict is paid for."""
    check_format(answers_path)
    check_format(out)
    if not out.absolute().parent.is_dir():
        raise InvalidInput(f"--out must lie in a folder that exists, got {out}")
    if out.is_dir() or (out.exists() and answers_path.exists() and out.samefile(answers_path)):
        raise InvalidInput(f"--out must be a file other than the answers, got {out}")


def _read(path: Path, *, limit: int | None) -> list[Answer | BadRow]:
    if limit is not None and limit < 1:
        raise InvalidInput(f"--limit must be at least 1, got {limit}")
    rows = list(read_answers(path))
    return rows if limit is None else first_rows(rows, limit)


def _name_bad_rows(rows: Sequence[Answer | BadRow], path: Path, *, strict: bool) -> None:
    bad = [row for row in rows if isinstance(row, BadRow)]
    console = stderr_console()
    for row in bad[:BAD_ROWS_NAMED]:
        console.print(safe(f"{path}, line {row.line}: {row.why}"), soft_wrap=True)
    if len(bad) > BAD_ROWS_NAMED:
        console.print(f"and {len(bad) - BAD_ROWS_NAMED:,} more bad rows", soft_wrap=True)
    if bad and strict:
        raise InvalidInput(f"with --strict every row must be good, got {len(bad):,} bad of {len(rows):,}; nothing sent")


# ---- after the last call ------------------------------------------------------------------------------------------


def _judged(rows: Sequence[Answer | BadRow], scoring: Scoring) -> list[JudgedAnswer]:
    return [JudgedAnswer(row, scoring.rewards[row.rollout.place] if isinstance(row, Answer) else None) for row in rows]


def _write(out: Path, judged: Sequence[JudgedAnswer], source: Path, console: Console) -> Path | None:
    """Writes the verdicts and returns where: in the folder for temporary files, if `out` cannot be written any more.

    Returns None if neither can: what was paid for is then in the journal alone.
    """
    try:
        write_verdicts(out, judged, source=source)
        return out
    except InvalidInput as error:
        if not isinstance(error.__cause__, OSError):
            raise
        try:
            spare = Path(tempfile.mkdtemp(prefix="rewardflow-score-")) / out.name
            write_verdicts(spare, judged, source=source)
        except (OSError, InvalidInput):
            console.print(f"{safe(str(error))}; nor can a temporary file be written", soft_wrap=True)
            return None
        console.print(f"{safe(str(error))}; the verdicts are in {safe(str(spare))}", soft_wrap=True)
        return spare


def _report_problems(scoring: Scoring, journal: Path | None, console: Console, *, is_written: bool) -> None:
    if scoring.journal_problem is not None:
        console.print(f"the journal is not complete: {safe(scoring.journal_problem)}", soft_wrap=True)
        has_all = "the output has every verdict that was paid for; " if is_written else ""
        console.print(f"{has_all}the same command pays again for verdicts that the journal lacks", soft_wrap=True)
    elif scoring.halted is not None or not is_written:
        if scoring.halted is not None:
            console.print(f"stopped early: {safe(str(scoring.halted))}", soft_wrap=True)
        console.print(_how_to_resume(journal), soft_wrap=True)
    saved = scoring.statistics.journal
    if saved is not None and saved.broken_rows:
        console.print(
            f"{saved.broken_rows:,} saved verdicts were broken and were asked for again; "
            f"`rewardflow journal check {safe(str(journal))}` tells which",
            soft_wrap=True,
        )


def _how_to_resume(journal: Path | None) -> str:
    if journal is None:
        return "there is no journal, so the same command would start over"
    return f"what was paid for is kept in {safe(str(journal))}; the same command goes on where this one stopped"
