"""`rewardflow demo agent`: `rewardflow score` at work on made-up answers, against a mock judge that fails in many ways.

Always true: the demo checks itself. Every answer has one verdict, every score equals the one that the demo computed
itself, and no failure carries a number; otherwise the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from rewardflow.answers.row_files import read_rows, write_rows
from rewardflow.cli.display import stderr_console, stdout_console
from rewardflow.cli.safe_text import safe
from rewardflow.cli.score import command as score
from rewardflow.errors import InvalidInput
from rewardflow.mock_judge import MockJudge, MockJudgeSettings
from rewardflow.mock_judge.marking import share_right
from rewardflow.observe.private_file import write_private
from rewardflow.observe.run_directory import JOURNAL_FILE, RunDirectory

ANSWERS_FILE, REWARD_FILE, VERDICTS_FILE = "answers.jsonl", "judge.yaml", "verdicts.jsonl"
PROBLEMS_SHOWN = 10

MAX_CONCURRENCY = 64
TIMEOUT_S = 1.5
MIN_TIMEOUT_S = 1.0  # real requests take real milliseconds, also from a judge whose clock runs fast
CALLS_PER_S = 250.0
OUTAGE_S = 2.0  # begins when the rate allows half of the calls to be done
# No 429 among them: refusals that do not depend on the rate would teach the agent a rate far too low.
FAULTS = {
    "500": 0.01,
    "502": 0.005,
    "hang": 0.01,
    "reset": 0.02,
    "truncated": 0.005,
    "malformed_verdict": 0.01,
    "wrong_schema": 0.005,
    "nan": 0.005,
    "out_of_range": 0.005,
}
NO_REFERENCE_SHARE = 0.003  # the judge refuses these answers in every attempt


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "agent",
        help="watch the agent alone score thousands of answers with a judge that fails in many ways; needs no torch",
        description=(
            "Runs `rewardflow score` on made-up answers to arithmetic problems. The judge is the mock judge, on this\n"
            "machine: slow, rate-limited and paid, with resets, hangs, errors, broken verdicts and an outage. Takes\n"
            "about 20 s and then checks itself: exit code 1 if any score differs from the known truth. The run and\n"
            "its journal are kept."
        ),
    )
    parser.add_argument("--answers", type=int, default=3000, metavar="N", help="how many answers to score (3000)")
    parser.add_argument(
        "--seconds-scale", type=float, default=1.0, metavar="X", help="stretch the judge's times by this factor (1.0)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the seed of the answers and the faults (0)")
    parser.add_argument(
        "--run-dir",
        metavar="DIR",
        help="the folder to keep the run in (a new temporary one); give an interrupted demo's to continue it",
    )
    parser.add_argument("--json", action="store_true", help="print the summary of `rewardflow score` as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.answers < 1:
        raise InvalidInput(f"--answers must be at least 1, got {args.answers}")
    if not 0 < args.seconds_scale <= 1000:
        raise InvalidInput(f"--seconds-scale must lie in (0, 1000], got {args.seconds_scale:g}")
    run_dir = Path(args.run_dir) if args.run_dir else Path(tempfile.mkdtemp(prefix="rewardflow-demo-"))
    RunDirectory.at(run_dir)  # first: it refuses a folder that holds other files
    answers = make_answers(args.answers, args.seed)
    write_rows(run_dir / ANSWERS_FILE, answers)
    try:
        _score(run_dir, judge_settings(args.seed, args.seconds_scale), args.answers, as_json=args.json)
    except KeyboardInterrupt:
        stderr_console().print(f"add --run-dir {run_dir} to go on with this demo", soft_wrap=True)
        raise
    problems = problems_of(answers, [row for _, row in read_rows(run_dir / VERDICTS_FILE)])
    if not args.json:
        _tell(len(problems), run_dir)
    for problem in problems[:PROBLEMS_SHOWN]:
        sys.stderr.write(f"rewardflow: the demo's own check failed: {safe(problem)}\n")
    return 1 if problems else 0


def _tell(num_problems: int, run_dir: Path) -> None:
    console = stdout_console()
    if num_problems:
        console.print(f"THE CHECK FAILED: {num_problems:,} verdicts are wrong.", soft_wrap=True)
    else:
        console.print(
            "No failure became a number: every score equals the known truth, and every failed verdict holds a reason.",
            soft_wrap=True,
        )
    console.print(f"look at the verdicts:  rewardflow journal ls {run_dir / JOURNAL_FILE}", soft_wrap=True)


# ---- judge and score ----------------------------------------------------------------------------------------------


def judge_settings(seed: int, scale: float) -> MockJudgeSettings:
    return MockJudgeSettings(
        seed=seed,
        scores="graded",
        latency="lognormal:0.2,0.6",
        scale=scale,
        faults=FAULTS,
        rpm=CALLS_PER_S * 60,
        burst_s=0.2,
        says_retry_after=False,  # HTTP knows whole seconds only, which are long in a demo of 20 s
    )


def reward_file(base_url: str, scale: float) -> dict[str, Any]:
    """Returns the contents of the YAML file that `rewardflow score` reads."""
    return {
        "reward": "llm_judge",
        "model": "mock-judge",
        "base_urls": [base_url],
        "criteria": [{"name": "correctness", "low": 0.0, "high": 1.0}],
        "prices": {"input_usd_per_million": 0.4, "output_usd_per_million": 1.6},
        "limits": {
            "max_concurrency": MAX_CONCURRENCY,
            "max_attempts": 5,
            "timeout_s": max(TIMEOUT_S * scale, MIN_TIMEOUT_S),
            "backoff_s": 0.3 * scale,
            "max_backoff_s": 3.0 * scale,
            "hedge_quantile": 0.97,
            "hedge_share": 0.03,
        },
    }


def _score(run_dir: Path, settings: MockJudgeSettings, num_answers: int, *, as_json: bool) -> None:
    """Runs `rewardflow score` while the judge serves."""
    parser = argparse.ArgumentParser()
    score.add_arguments(parser)
    words = [str(run_dir / ANSWERS_FILE), "--reward", str(run_dir / REWARD_FILE), "--out", str(run_dir / VERDICTS_FILE)]
    words += ["--journal", str(run_dir / JOURNAL_FILE), "--run-dir", str(run_dir), *(["--json"] if as_json else [])]
    half_s = num_answers / 2 / CALLS_PER_S
    with MockJudge(settings) as judge, _outage(judge, half_s * settings.scale, OUTAGE_S * settings.scale):
        # JSON is YAML, and orjson is here already.
        write_private(run_dir / REWARD_FILE, orjson.dumps(reward_file(judge.base_url, settings.scale)))
        score.run(parser.parse_args(words))


@contextlib.contextmanager
def _outage(judge: MockJudge, after_s: float, duration_s: float) -> Iterator[None]:
    """Takes the judge down once, for `duration_s`, unless the block ends before."""
    timers = [threading.Timer(after_s, judge.go_down), threading.Timer(after_s + duration_s, judge.come_up)]
    for timer in timers:
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
            timer.join()


# ---- answers and their truth --------------------------------------------------------------------------------------


def make_answers(count: int, seed: int) -> list[dict[str, Any]]:
    """Makes rows of right and wrong answers to arithmetic problems, in groups of four or five."""
    rng = random.Random(f"answers {seed}")
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        size = min(rng.choice((4, 5)), count - len(rows))
        left, operator, right = rng.randint(11, 99), rng.choice("+-*"), rng.randint(11, 99)
        result = {"+": left + right, "-": left - right, "*": left * right}[operator]
        group = {"group_id": f"problem-{left}{operator}{right}-{len(rows)}", "group_size": size}
        group |= {"prompt": f"What is {left} {operator} {right}?", "data_source": "arithmetic"}
        for index in range(size):
            reference = None if rng.random() < NO_REFERENCE_SHARE else str(result)
            rows.append({**group, "index": index, "response": _response(result, rng), "ground_truth": reference})
    return rows


def _response(result: int, rng: random.Random) -> str:
    drawn = rng.random()
    if drawn < 0.55:
        return str(result)
    return str(result + rng.choice((-10, 10) if drawn < 0.75 else (-101, -7, -1, 1, 3, 50)))


def truth_of(answer: Mapping[str, Any]) -> float | None:
    """Returns the score that an answer deserves: the share of right digits; None where the judge has no reference."""
    reference = answer["ground_truth"]
    return None if reference is None else round(share_right(answer["response"], reference), 2)


def problems_of(answers: Sequence[Mapping[str, Any]], verdicts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describes every verdict that is missing, doubled, wrong or without a reason."""
    if len(answers) != len(verdicts):
        return [f"{len(answers):,} answers must have as many verdicts, got {len(verdicts):,}"]
    problems = []
    for line, (answer, verdict) in enumerate(zip(answers, verdicts, strict=True), start=1):
        truth = truth_of(answer)
        if any(verdict.get(name) != answer[name] for name in ("group_id", "index", "response")):
            problems.append(f"line {line} holds the verdict of another answer")
        elif verdict["status"] == "scored" and verdict["score"] != truth:
            problems.append(f"line {line} was scored {verdict['score']}, the truth is {truth}")
        elif verdict["status"] != "scored" and not (verdict["kind"] and verdict["error"] and verdict["score"] is None):
            problems.append(f"line {line} failed without a reason")
    return problems
