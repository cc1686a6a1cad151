"""`rewardflow demo agent`: the agent at work on a few thousand answers, with a judge that fails in every known way.

Always true: the demo checks itself. Every answer has one verdict, every score equals the truth that was known before,
and no failure carries a number; otherwise the exit code is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from rich.table import Table

import rewardflow as rf
from rewardflow.cli.demo.demo_judge import TIMEOUT_S, Answer, FlakyJudge, make_answers
from rewardflow.cli.display import AgentView, bar, duration, safe, stderr_console, stdout_console
from rewardflow.errors import InvalidInput
from rewardflow.observe.events import AgentOpened, CallEnded
from rewardflow.observe.histogram import Histogram
from rewardflow.observe.run_directory import JOURNAL_FILE, read_events

if TYPE_CHECKING:
    from rich.console import Console

MAX_CONCURRENCY = 64
QUANTILES = (0.5, 0.9, 0.99)
BAR_WIDTH = 40
REASONS_SHOWN = 2
REASON_CHARS = 80
PROBLEMS_SHOWN = 10


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "agent",
        help="watch the agent alone score thousands of answers with a judge that fails in every way; needs no torch",
        description=(
            "Scores made-up answers to arithmetic problems with a simulated judge that is slow, rate-limited and\n"
            "paid, and that breaks, hangs, babbles and goes down for a while. Takes about 20 s and then checks\n"
            "itself: exit code 1 if any score differs from the known truth. The run and its journal are kept."
        ),
    )
    parser.add_argument("--answers", type=int, default=3000, metavar="N", help="how many answers to score (3000)")
    parser.add_argument(
        "--seconds-scale", type=float, default=1.0, metavar="X", help="stretch the judge's times by this factor (1.0)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the answers and the faults (0)")
    parser.add_argument(
        "--run-dir",
        metavar="DIR",
        help="where to keep the run (a new temporary directory); with that of an interrupted demo, goes on with it",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.answers < 1:
        raise InvalidInput(f"--answers must be at least 1, got {args.answers}")
    if not 0 < args.seconds_scale <= 1000:
        raise InvalidInput(f"--seconds-scale must lie in (0, 1000], got {args.seconds_scale:g}")
    run_dir = Path(args.run_dir) if args.run_dir else Path(tempfile.mkdtemp(prefix="rewardflow-demo-"))
    judge = FlakyJudge(args.answers, seed=args.seed, scale=args.seconds_scale)
    answers = make_answers(args.answers, args.seed)
    try:
        # In a loop of its own: in Python 3.11 a task that has seen its task group fail takes no Ctrl-C any more.
        naive = asyncio.run(score_without_agent(answers, dataclasses.replace(judge)))
        outcome = asyncio.run(play(answers, judge, run_dir, stderr_console(), naive=naive))
    except KeyboardInterrupt:
        stderr_console().print(f"what was paid for is kept; add --run-dir {run_dir} to go on with it", soft_wrap=True)
        raise
    return report(outcome, as_json=args.json)


def report(outcome: Outcome, *, as_json: bool) -> int:
    """Show what came out; the exit code."""
    if as_json:
        sys.stdout.write(orjson.dumps(outcome.to_json(), option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        show(outcome, stdout_console())
    for problem in outcome.problems[:PROBLEMS_SHOWN]:
        sys.stderr.write(f"rewardflow: the demo's own check failed: {safe(problem)}\n")
    return 1 if outcome.problems else 0


# ---- playing ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Naive:
    """How the same answers fared without an agent."""

    died_after_s: float | None
    error: str
    num_scored: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All that the demo found out."""

    answers: int
    groups: int
    elapsed_s: float
    scores: Counter[float]
    failures: dict[str, Counter[str]]  # by kind, then by reason
    latency_s: Histogram
    calls: int
    retries: int
    hedges: int
    hedges_won: int
    rate_limited: int
    cached: int
    cost_usd: float
    tokens: int
    one_by_one_s: float
    naive: Naive
    run_dir: Path
    problems: Sequence[str]

    @property
    def scored(self) -> int:
        return self.scores.total()

    @property
    def failed(self) -> int:
        return sum(reasons.total() for reasons in self.failures.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "answers": self.answers,
            "groups": self.groups,
            "scored": self.scored,
            "failed": {kind: reasons.total() for kind, reasons in self.failures.items()},
            "reasons": {kind: dict(reasons.most_common(REASONS_SHOWN)) for kind, reasons in self.failures.items()},
            "scores": {f"{score:g}": count for score, count in sorted(self.scores.items())},
            "latency_s": {f"p{q * 100:g}": self.latency_s.quantile(q) for q in QUANTILES},
            "calls": self.calls,
            "retries": self.retries,
            "hedges": self.hedges,
            "hedges_won": self.hedges_won,
            "rate_limited": self.rate_limited,
            "cached": self.cached,
            "cost_usd": self.cost_usd,
            "tokens": self.tokens,
            "elapsed_s": self.elapsed_s,
            "one_by_one_s": self.one_by_one_s,
            "naive": {
                "died_after_s": self.naive.died_after_s,
                "error": self.naive.error,
                "scored": self.naive.num_scored,
            },
            "run_dir": str(self.run_dir),
            "journal": str(self.run_dir / JOURNAL_FILE),
            "problems": list(self.problems),
        }


async def play(
    answers: Sequence[Answer], judge: FlakyJudge, run_dir: Path, console: Console, *, naive: Naive
) -> Outcome:
    """Score the answers and check what came out."""
    loop = asyncio.get_running_loop()
    agent = rf.RewardAgent(
        judge,
        max_concurrency=MAX_CONCURRENCY,
        timeout_s=TIMEOUT_S * judge.scale,
        backoff_s=0.3 * judge.scale,
        max_backoff_s=3.0 * judge.scale,
        hedge_quantile=0.97,
        hedge_share=0.03,
        run_dir=run_dir,
        journal=run_dir / JOURNAL_FILE,
    )
    console.print(
        f"scoring {len(answers):,} answers, at most {MAX_CONCURRENCY} at once; the run is kept in {run_dir}",
        soft_wrap=True,
    )
    groups: list[rf.ScoredGroup] = []
    began_s = loop.time()
    async with agent:
        async with AgentView(agent, len(answers), console).shown():
            async for group in agent.submit(answer.rollout for answer in answers):
                groups.append(group)
        elapsed_s = loop.time() - began_s
        statistics = agent.statistics()
    return summarise(answers, groups, statistics, judge=judge, naive=naive, elapsed_s=elapsed_s, run_dir=run_dir)


async def score_without_agent(answers: Sequence[Answer], judge: FlakyJudge) -> Naive:
    """As one would write it in a minute: all tasks at once behind a semaphore, and the first exception ends it."""
    slots = asyncio.Semaphore(MAX_CONCURRENCY)
    num_scored = 0

    async def score(rollout: rf.Rollout) -> None:
        nonlocal num_scored
        async with slots:
            await judge.compute_score(rollout.response, rollout.ground_truth, dict(rollout.extra_info))
        num_scored += 1

    loop = asyncio.get_running_loop()
    began_s = loop.time()
    error = ""
    try:
        async with asyncio.timeout(TIMEOUT_S * judge.scale), asyncio.TaskGroup() as tasks:
            for answer in answers:
                tasks.create_task(score(answer.rollout))
    except TimeoutError:
        error = "a call that never came back"
    except ExceptionGroup as raised:
        first = raised.exceptions[0]
        error = f"{type(first).__name__}: {first}"
    return Naive(died_after_s=loop.time() - began_s if error else None, error=error, num_scored=num_scored)


# ---- summing up ---------------------------------------------------------------------------------------------------


def summarise(
    answers: Sequence[Answer],
    groups: Sequence[rf.ScoredGroup],
    statistics: rf.AgentStatistics,
    *,
    judge: FlakyJudge,
    naive: Naive,
    elapsed_s: float,
    run_dir: Path,
) -> Outcome:
    scores: Counter[float] = Counter()
    failures: dict[str, Counter[str]] = {}
    latency_s = Histogram()
    rewards = [reward for group in groups for reward in group.rewards]
    for reward in rewards:
        if reward.value is None:
            failures.setdefault(str(reward.kind), Counter())[_reason(reward)] += 1
        else:
            scores[reward.value] += 1
        if not reward.cached:
            latency_s.add(reward.latency_s)
    retries, hedges = _count_calls(run_dir)
    account = statistics.accounts[0]
    return Outcome(
        answers=len(answers),
        groups=len(groups),
        elapsed_s=elapsed_s,
        scores=scores,
        failures=dict(sorted(failures.items(), key=lambda item: -item[1].total())),
        latency_s=latency_s,
        calls=statistics.calls,
        retries=retries,
        hedges=hedges,
        hedges_won=account.hedges_won,
        rate_limited=account.outcomes.get("rate_limited", 0),
        cached=sum(reward.cached for reward in rewards),
        cost_usd=statistics.ledger.spent_usd,
        tokens=statistics.ledger.tokens,
        one_by_one_s=judge.busy_s,
        naive=naive,
        run_dir=run_dir,
        problems=check(answers, groups),
    )


def check(answers: Sequence[Answer], groups: Iterable[rf.ScoredGroup]) -> list[str]:
    """What is wrong with these verdicts; nothing, it is to be hoped."""
    truths = {_place(answer.rollout): answer.truth for answer in answers}
    problems = []
    seen: Counter[tuple[int, str, int]] = Counter()
    for group in groups:
        for rollout, reward in zip(group.rollouts, group.rewards, strict=True):
            place = _place(rollout)
            seen[place] += 1
            if reward.is_scored and reward.value != truths.get(place):
                problems.append(f"{place} was scored {reward.value}, the truth is {truths.get(place)}")
            if not reward.is_scored and not (reward.kind and reward.error):
                problems.append(f"{place} failed without a reason")
    problems += [f"{place} got {seen[place]} verdicts" for place in truths if seen[place] != 1]
    return problems


def _place(rollout: rf.Rollout) -> tuple[int, str, int]:
    return rollout.step, rollout.group_id, rollout.index


def _reason(reward: rf.Reward) -> str:
    """Without the digits of measured times, by which equal reasons would differ."""
    return re.sub(r"(\d+\.\d)\d+", r"\1", reward.error or "")


def _count_calls(run_dir: Path) -> tuple[int, int]:
    """Retries and hedges of the run's last session."""
    retries = hedges = 0
    for event in read_events(run_dir):
        if isinstance(event, AgentOpened):
            retries = hedges = 0
        elif isinstance(event, CallEnded):
            hedges += event.is_hedge
            retries += event.attempt > 1 and not event.is_hedge
    return retries, hedges


# ---- showing ------------------------------------------------------------------------------------------------------


def show(outcome: Outcome, console: Console) -> None:
    console.print(f"\n{outcome.answers:,} answers in {outcome.groups:,} groups: {outcome.scored:,} scored, ", end="")
    console.print(f"{outcome.failed:,} failed, in {duration(outcome.elapsed_s)}\n")
    console.print(_picture(outcome, ascii_only=console.options.ascii_only))
    console.print()
    for line in _closing_words(outcome):
        console.print(line, soft_wrap=not console.is_terminal)
    console.print(f"\nlook at the verdicts:  rewardflow journal ls {outcome.run_dir / JOURNAL_FILE}", soft_wrap=True)


def _picture(outcome: Outcome, *, ascii_only: bool) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    most = max(outcome.scores.values(), default=1)
    for number, (score, count) in enumerate(sorted(outcome.scores.items())):
        shown = bar(count / most, BAR_WIDTH, ascii_only=ascii_only)
        grid.add_row("" if number else "scores", f"{score:g}", f"{shown} {count:,}")
    for number, (kind, reasons) in enumerate(outcome.failures.items()):
        examples = "\n".join(_first_clause(reason) for reason, _ in reasons.most_common(REASONS_SHOWN))
        grid.add_row("" if number else "failures", f"{kind} {reasons.total()}", examples)
    quantiles = [(q, outcome.latency_s.quantile(q)) for q in QUANTILES]
    latencies = "   ".join(f"{value:.2f} s (p{q * 100:g})" for q, value in quantiles if value is not None)
    grid.add_row("verdicts", f"{outcome.answers:,}", f"latency {latencies}, with retries" if latencies else "")
    calls = (
        f"{outcome.retries:,} retries, {outcome.hedges:,} hedges ({outcome.hedges_won:,} came first), "
        f"{outcome.rate_limited:,} calls refused with 429"
    )
    grid.add_row("calls", f"{outcome.calls:,}", calls)
    if outcome.cached:
        grid.add_row("journal", f"{outcome.cached:,}", "verdicts came from the journal and were not paid for again")
    grid.add_row("cost", f"${outcome.cost_usd:.2f}", f"{outcome.tokens:,} tokens, retries and hedges included")
    return grid


def _first_clause(reason: str) -> str:
    clause = safe(reason).partition("; ")[0]
    return clause if len(clause) <= REASON_CHARS else f"{clause[: REASON_CHARS - 3]}..."


def _closing_words(outcome: Outcome) -> list[str]:
    naive = outcome.naive
    if naive.died_after_s is None:
        alone = "plain asyncio tasks, tried just now, happened to get through."
    else:
        alone = (
            "plain asyncio tasks (gather or TaskGroup), tried just now on the same answers, died of their first "
            f"exception after {duration(naive.died_after_s)} ({safe(naive.error)}), with {naive.num_scored:,} scored."
        )
    truth = (
        f"No failure became a number: all {outcome.scored:,} scores equal the known truth, and the {outcome.failed:,} "
        "failed verdicts hold a reason instead of a score."
    )
    return [
        f"One after another, these calls would have taken {duration(outcome.one_by_one_s)}; {alone}",
        truth if not outcome.problems else f"THE CHECK FAILED: {len(outcome.problems):,} verdicts are wrong.",
    ]
