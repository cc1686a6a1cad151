"""`rewardflow demo`: trains a tiny model with a slow judge, first waiting for the judge, then without waiting.

Always true: both runs have the same prompts, weights, judge and number of steps, and differ only in their schedule;
the judge is a server in another process, and every verdict comes over HTTP.

The judge takes 1 to 40 s a call, as in the original experiment. There the judge's part of a step took 2.3 times as long
as the device's. The demo speeds the judge's clock up so that this ratio holds on any machine.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

from rewardflow.cli.demo import agent_demo
from rewardflow.cli.demo.closing_report import DemoOutcome, DemoRun, report
from rewardflow.cli.display import stderr_console
from rewardflow.cli.train.live_view import TrainView
from rewardflow.errors import InvalidInput
from rewardflow.flow.reports import StepReport
from rewardflow.mock_judge.judge_process import judge_process
from rewardflow.mock_judge.marking import share_right
from rewardflow.plan.named_schedules import SCHEDULES as NAMED_SCHEDULES
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.latency import LONGEST_S, MEAN_S, SHORTEST_S
from rewardflow.runtime.local import embedded
from rewardflow.runtime.prepare import check_installed
from rewardflow.services.judges.llm_judge import LLMJudge
from rewardflow.services.judges.rubric import Criterion
from rewardflow.services.prices import Prices
from rewardflow.settings.copying_run import copying_run
from rewardflow.settings.run_settings import RunSettings

if TYPE_CHECKING:
    from rich.console import Console

STEPS = 180
SLOTS = 64
JUDGE_TO_COMPUTE = 410 / 177  # seconds of a step in the original experiment
SCHEDULES = {"synchronous": "synchronous", "pipeline_one_step": "pipeline, one step off-policy"}
_MEASURED_STEPS = 8
_FREE = Prices(input_usd_per_million=0.0, output_usd_per_million=0.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Trains a tiny model to copy digits, with a mock LLM judge on this machine that takes 1 to 40 s a call\n"
        "(on a faster clock): first synchronously, then with the mini-batch pipeline and one step off-policy.\n"
        "Takes about three minutes on two cores. `rewardflow demo agent` shows the reward agent alone."
    )
    parser.epilog = "examples:\n  rewardflow demo --steps 40\n  rewardflow demo agent --answers 1000"
    parser.add_argument(
        "--steps", type=int, default=STEPS, metavar="N", help=f"steps of each of the two runs ({STEPS})"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="the seed of weights, prompts, sampling and delays (0)"
    )
    parser.add_argument("--json", action="store_true", help="print the outcome as one JSON object")
    agent_demo.add_parser(parser.add_subparsers(title="other demos", dest="demo", metavar="agent"))


def run(args: argparse.Namespace) -> int:
    if args.steps < 1:
        raise InvalidInput(f"--steps must be at least 1, got {args.steps}")
    check_installed()
    report(play(args.steps, args.seed, stderr_console()), as_json=args.json)
    return 0


def play(steps: int, seed: int, console: Console) -> DemoOutcome:
    compute_s = _measure_compute_s(seed, console)
    settings = _settings("synchronous", seed=seed, steps=steps)
    calls_per_step = settings.schedule.groups_per_step * settings.generation.group_size
    scale = compute_s * JUDGE_TO_COMPUTE * SLOTS / (calls_per_step * MEAN_S)
    with judge_process(seed=seed, scores="graded", latency=f"uniform:{SHORTEST_S},{LONGEST_S}", scale=scale) as judge:
        runs = []
        for schedule, words in SCHEDULES.items():
            console.print(f"training, {words}: {steps:,} steps of {calls_per_step:,} verdicts each", soft_wrap=True)
            runs.append(asyncio.run(_train(schedule, steps, seed, judge.base_url, console)))
    synchronous, overlapped = runs
    return DemoOutcome(
        synchronous=synchronous,
        overlapped=overlapped,
        calls_per_step=calls_per_step,
        slots=SLOTS,
        scale=scale,
        service_s=calls_per_step * MEAN_S * scale / SLOTS,
    )


def _settings(schedule: str, *, seed: int, steps: int) -> RunSettings:
    stream, max_staleness = NAMED_SCHEDULES[schedule]
    reward = "rewardflow.services.judges.llm_judge:LLMJudge"
    return copying_run(reward, stream=stream, max_staleness=max_staleness, seed=seed, steps=steps)


def _measure_compute_s(seed: int, console: Console) -> float:
    """Measures the device's work in a step without a judge. Takes the minimum: other programs only add to it."""
    console.print("measuring what a step of training computes on this machine", soft_wrap=True)
    return min(step.usage.total_busy_s for step in asyncio.run(_train_undelayed(seed)))


async def _train_undelayed(seed: int) -> list[StepReport]:
    reports: list[StepReport] = []
    settings = _settings("synchronous", seed=seed, steps=_MEASURED_STEPS)
    async with embedded(settings, agent=RewardAgent(_grade), on_step=reports.append) as run:
        await run.train()
    return reports


async def _grade(solution_str: str, ground_truth: str) -> float:
    """Scores as the judge does, without delay."""
    return share_right(solution_str, ground_truth)


async def _train(schedule: str, steps: int, seed: int, base_url: str, console: Console) -> DemoRun:
    settings = _settings(schedule, seed=seed, steps=steps)
    judge = LLMJudge(
        model="mock-judge", base_urls=[base_url], criteria=[Criterion("correctness", low=0.0, high=1.0)], prices=_FREE
    )
    view = TrainView(steps, console)
    durations_s: list[float] = []

    def on_step(step: StepReport) -> None:
        view.add(step)
        durations_s.append(step.duration_s)

    agent = RewardAgent(judge, max_concurrency=SLOTS)
    async with embedded(settings, agent=agent, on_step=on_step) as run, view.shown(run):
        await run.train()
    return DemoRun(name=SCHEDULES[schedule], totals=view.totals, durations_s=durations_s)
