"""`rewardflow bench learning`: measures whether overlapping makes learning worse.

A tiny model, from random weights, learns to copy three digits and to stop after them, once under each schedule and
seed. The rule that scores it answers after a short delay, so that groups complete in another order than they were made.

Always true: all runs have the same settings except schedule and seed; `exact` and `final_reward` are means over the
samples of the last steps at temperature 1, not over greedy decoding, which would be better.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Unpack

from rewardflow.bench.benchmark_row import BenchmarkRow
from rewardflow.bench.schedules import SCHEDULES
from rewardflow.errors import InvalidInput
from rewardflow.flow.reports import StepReport
from rewardflow.mock_judge.marking import share_right
from rewardflow.reward.agent import RewardAgent
from rewardflow.runtime.local import embedded
from rewardflow.settings.copying_run import GROUPS_PER_STEP, CopyingOptions, copying_run
from rewardflow.settings.run_settings import RunSettings
from rewardflow.types import Reward, Rollout

SYNCHRONOUS = "synchronous"
STEPS = 240
LAST_STEPS = 10
SEEDS = (0, 1, 2)
EXACT_BAR = ">= 0.95"
DIFFERENCE_BAR = "<= 0.02"

_QUICK_SCHEDULES = (SYNCHRONOUS, "pipeline_one_step")
_LONGEST_DELAY_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningFigures:
    """The results of one run."""

    schedule: str
    seed: int
    steps: int
    exact: float  # share of sampled answers that were completely right
    final_reward: float
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def grade(rollout: Rollout) -> Reward:
    """Scores by the share of characters in their places; the component `exact` is 1 for a completely right answer."""
    answer, reference = rollout.response, str(rollout.ground_truth)
    return Reward(value=share_right(answer, reference), components={"exact": float(answer == reference)})


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedRule:
    """Scores by the share of characters in their places, after a delay drawn from the seed and the rollout's place."""

    seed: int

    async def compute_score(self, rollout: Rollout) -> Reward:
        luck = random.Random(f"{self.seed}/{rollout.group_id}/{rollout.index}").random()
        await asyncio.sleep(luck * _LONGEST_DELAY_S)
        return grade(rollout)


def copying_settings(schedule: str, *, seed: int, steps: int, **options: Unpack[CopyingOptions]) -> RunSettings:
    """Returns the copying run under a schedule of this benchmark."""
    stream, max_staleness = SCHEDULES[schedule]
    return copying_run(
        "rewardflow.bench.learning:DelayedRule",
        stream=stream,
        max_staleness=max_staleness,
        seed=seed,
        steps=steps,
        **options,
    )


def run_learning_benchmarks(
    *, quick: bool = False, seeds: Sequence[int] = SEEDS, steps: int = STEPS
) -> Iterator[LearningFigures]:
    """Yields figures as they are measured, schedule by schedule."""
    if not seeds:
        raise InvalidInput("at least one seed must be given, got none")
    for schedule in _QUICK_SCHEDULES if quick else SCHEDULES:
        for seed in seeds[:1] if quick else seeds:
            yield measure(schedule, seed=seed, steps=steps)


def measure(schedule: str, *, seed: int, steps: int, groups_per_step: int = GROUPS_PER_STEP) -> LearningFigures:
    settings = copying_settings(schedule, seed=seed, steps=steps, groups_per_step=groups_per_step)
    reports: list[StepReport] = []
    began_s = time.perf_counter()
    asyncio.run(_train(settings, reports))
    last = reports[-LAST_STEPS:]
    return LearningFigures(
        schedule=schedule,
        seed=seed,
        steps=steps,
        exact=fmean(report.component_means["exact"] for report in last),
        final_reward=fmean(report.score_mean or 0.0 for report in last),
        seconds=time.perf_counter() - began_s,
    )


async def _train(settings: RunSettings, reports: list[StepReport]) -> None:
    agent = RewardAgent(DelayedRule(seed=settings.seed), max_concurrency=256)
    async with embedded(settings, agent=agent, on_step=reports.append) as run:
        await run.train()


def report_of(figures: Iterable[LearningFigures]) -> dict[str, Any]:
    """Returns the whole benchmark as one JSON object."""
    every = list(figures)
    return {"learning": [one.to_json() for one in every], "rows": [row.to_json() for row in rows_of(every)]}


def rows_of(figures: Iterable[LearningFigures]) -> Iterator[BenchmarkRow]:
    """Yields rows for the table as the figures come; at the end each schedule's loss against the synchronous one."""
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    for one in figures:
        rewards[one.schedule].append(one.final_reward)
        name = f"{one.schedule}, seed {one.seed}, {one.steps} steps, {one.seconds:.0f} s"
        yield BenchmarkRow(name=f"{name}: right of the last", value=one.exact, unit="", bar=EXACT_BAR)
        yield BenchmarkRow(name=f"{name}: final reward", value=one.final_reward, unit="")
    means = {schedule: fmean(values) for schedule, values in rewards.items()}
    for schedule, mean in means.items():
        if schedule != SYNCHRONOUS and SYNCHRONOUS in means:
            yield BenchmarkRow(
                name=f"{schedule}: reward lost against {SYNCHRONOUS}, in the mean",
                value=means[SYNCHRONOUS] - mean,
                unit="",
                bar=DIFFERENCE_BAR,
            )
