"""`rewardflow demo`: trains a tiny model with a slow judge, first waiting for the judge, then without waiting.

Always true: both runs have the same prompts, weights, judge and number of steps, and differ only in their schedule. The
model that they begin with, both runs and the page that compares them are kept.

The model begins with a third of its answers right, as a pretrained one would: from random weights, how many steps it
needs is mostly chance, which would hide what the schedules do.

The judge takes 1 to 40 s a call, and its part of a step 2.3 times as long as the device's, as in the original
experiment. The demo speeds the judge's clock up so that this holds on any machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rewardflow.cli.demo import agent_demo
from rewardflow.cli.demo.closing_report import DemoOutcome, DemoRun, report
from rewardflow.cli.demo.expected_steps import DeviceWork, expected_steps
from rewardflow.cli.demo.slow_judge import SlowJudge
from rewardflow.cli.display import stderr_console
from rewardflow.cli.train.live_view import TrainView
from rewardflow.errors import InvalidInput
from rewardflow.flow.reports import StepReport
from rewardflow.observe.private_file import write_private
from rewardflow.observe.run_directory import check_free_for_new_run
from rewardflow.plan.named_schedules import SCHEDULES as NAMED_SCHEDULES
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.latency import MEAN_S
from rewardflow.runtime.local import embedded
from rewardflow.runtime.prepare import check_installed
from rewardflow.settings.copying_run import NUM_DIGITS, TRAINER, copying_run
from rewardflow.settings.run_settings import PolicySettings, RunSettings

if TYPE_CHECKING:
    from rich.console import Console

STEPS = 60
SLOTS = 64
JUDGE_TO_COMPUTE = 2.3  # seconds of a step, as in the original experiment
LEARNING_RATE = 2.5e-4  # so low that the curve has a shape: at 2e-3 the model would know everything after 14 steps
SCHEDULES = {"synchronous": "synchronous", "pipeline_one_step": "pipeline, one step off-policy"}
COMPARISON_FILE = "comparison.html"
MODEL_FOLDER = "model"
_MEASURED_STEPS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Trains a tiny model to copy digits, with a judge that takes 1 to 40 s a call (on a faster clock): first\n"
        "synchronously, then with the mini-batch pipeline and one step off-policy. Takes about a minute on two\n"
        "cores. `rewardflow demo agent` shows the reward agent alone, with a faulty judge over HTTP."
    )
    parser.epilog = "examples:\n  rewardflow demo --run-dir runs/demo\n  rewardflow demo agent --answers 1000"
    parser.add_argument(
        "--steps", type=int, default=STEPS, metavar="N", help=f"steps of each of the two runs ({STEPS})"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="the seed of weights, prompts, sampling and delays (0)"
    )
    parser.add_argument("--run-dir", metavar="DIR", help="the folder to keep both runs in (a new temporary one)")
    parser.add_argument("--json", action="store_true", help="print the outcome as one JSON object")
    agent_demo.add_parser(parser.add_subparsers(title="other demos", dest="demo", metavar="agent"))


def run(args: argparse.Namespace) -> int:
    if args.steps < 1:
        raise InvalidInput(f"--steps must be at least 1, got {args.steps}")
    check_installed()
    folder = Path(args.run_dir) if args.run_dir else Path(tempfile.mkdtemp(prefix="rewardflow-demo-"))
    for name in SCHEDULES:
        check_free_for_new_run(folder / name)
    outcome = play(args.steps, args.seed, folder, stderr_console())
    _write_comparison(folder)
    report(outcome, as_json=args.json)
    return 0


def play(steps: int, seed: int, folder: Path, console: Console) -> DemoOutcome:
    """Trains under both schedules; the runs are kept in folders below `folder` with the names of the schedules."""
    model = folder / MODEL_FOLDER
    with _told("loading torch, and teaching a tiny model to copy digits with many mistakes", console):
        _teach(model, seed)
    with _told("measuring what a step of training computes on this machine", console):
        alone = _measured_alone(model, seed)
    settings = _settings("synchronous", model, seed=seed, steps=steps)
    calls_per_step = settings.schedule.groups_per_step * settings.generation.group_size
    scale = alone.compute_s * JUDGE_TO_COMPUTE * SLOTS / (calls_per_step * MEAN_S)
    runs = []
    for schedule, words in SCHEDULES.items():
        console.print(f"training, {words}: {steps:,} steps of {calls_per_step:,} verdicts each", soft_wrap=True)
        judged = replace(
            _settings(schedule, model, seed=seed, steps=steps),
            reward_kwargs={"seed": seed, "scale": scale},
            limits={"max_concurrency": SLOTS},
            run_dir=folder / schedule,
        )
        runs.append(asyncio.run(_train(judged, words, console)))
    synchronous, overlapped = runs
    return DemoOutcome(
        synchronous=synchronous,
        overlapped=overlapped,
        expected=expected_steps(
            alone, settings.schedule, settings.generation.group_size, slots=SLOTS, scale=scale, seed=seed
        ),
        calls_per_step=calls_per_step,
        slots=SLOTS,
        scale=scale,
        service_s=calls_per_step * MEAN_S * scale / SLOTS,
        alone_s=alone.compute_s,
        folder=folder,
    )


@contextlib.contextmanager
def _told(words: str, console: Console) -> Iterator[None]:
    """Shows what takes a while; on a terminal with something that moves."""
    if console.is_terminal:
        with console.status(words):
            yield
    else:
        console.print(words, soft_wrap=True)
        yield


def _teach(folder: Path, seed: int) -> None:
    from rewardflow.policy.taught_tiny import save_taught_tiny

    save_taught_tiny(folder, num_digits=NUM_DIGITS, seed=seed)


def _settings(schedule: str, model: Path, *, seed: int, steps: int) -> RunSettings:
    stream, max_staleness = NAMED_SCHEDULES[schedule]
    reward = f"{SlowJudge.__module__}:{SlowJudge.__name__}"
    trainer = replace(TRAINER, lr=LEARNING_RATE, lr_schedule="constant")
    settings = copying_run(reward, stream=stream, max_staleness=max_staleness, seed=seed, steps=steps, trainer=trainer)
    return replace(settings, policy=PolicySettings(model=str(model)))


def _measured_alone(model: Path, seed: int) -> DeviceWork:
    """Measures the device's work in a step without a judge. Takes the fastest step: other programs only add to it."""
    steps = asyncio.run(_train_undelayed(model, seed))
    return min((DeviceWork.of(step) for step in steps), key=lambda times: times.compute_s)


async def _train_undelayed(model: Path, seed: int) -> list[StepReport]:
    reports: list[StepReport] = []
    settings = _settings("synchronous", model, seed=seed, steps=_MEASURED_STEPS)
    async with embedded(settings, agent=RewardAgent(SlowJudge(seed, scale=0.0)), on_step=reports.append) as run:
        await run.train()
    return reports


async def _train(settings: RunSettings, name: str, console: Console) -> DemoRun:
    view = TrainView(settings.steps, console)
    durations_s: list[float] = []

    def on_step(step: StepReport) -> None:
        view.add(step)
        durations_s.append(step.duration_s)

    async with embedded(settings, probes=False, on_step=on_step) as run, view.shown(run):
        await run.train()
    return DemoRun(name=name, totals=view.totals, durations_s=durations_s)


def _write_comparison(folder: Path) -> None:
    from rewardflow.report.run_data import read_run
    from rewardflow.report.run_page import comparison_page

    one, other = (read_run(folder / name) for name in SCHEDULES)
    write_private(folder / COMPARISON_FILE, comparison_page(one, other).encode())
