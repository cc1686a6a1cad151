"""`rewardflow bench learning`: measures whether overlapping makes learning worse, over tasks, schedules and seeds.

A tiny model learns from random weights, once for each task, schedule, loss and seed. A rule scores it after a delay, so
that groups complete in another order than they were generated:

    copy      copies three digits and stops; delays are random
    lengths   copies one to three digits and stops; delays grow with the length of the answer

Always true: runs of a task have the same settings except schedule, loss and seed; a run reaches the target when the
mean score of `WINDOW` steps does, and a run that never does counts as slower than all others, not as missing; scores
are those of samples at temperature 1, not of greedy decoding, which would be better.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any, Literal, Unpack

from rewardflow.bench.benchmark_row import BenchmarkRow
from rewardflow.bench.learning.learning_summary import LearningFigures, summary_rows
from rewardflow.bench.schedules import SCHEDULES
from rewardflow.errors import InvalidInput
from rewardflow.flow.reports import StepReport
from rewardflow.mock_judge.marking import share_right
from rewardflow.reward.agent import RewardAgent
from rewardflow.runtime.local import embedded
from rewardflow.settings.copying_run import (
    ALGORITHM,
    GROUPS_PER_STEP,
    NUM_DIGITS,
    CopyingOptions,
    CopyingTask,
    copying_run,
)
from rewardflow.settings.run_settings import RunSettings
from rewardflow.types import Reward, Rollout

Loss = Literal["ppo", "decoupled"]

SYNCHRONOUS = "synchronous"
STEPS = 180
LAST_STEPS = 10
WINDOW = 10
TARGET = 0.9
SEEDS = tuple(range(12))
SLOTS = 64  # with the delays below, the judge takes about as long for a step as a small CPU

_QUICK_SCHEDULES = (SYNCHRONOUS, "pipeline_one_step")
_QUICK_SEEDS = 3
_LONGEST_DELAY_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningTask:
    """A task that the tiny model can learn, and the delays of its judge."""

    name: str
    task: CopyingTask
    num_digits: int
    delay_a_character_s: float = 0.0  # added to the random delay of a verdict


TASKS = (
    LearningTask(name="copy", task="copy_digits", num_digits=NUM_DIGITS),
    LearningTask(name="lengths", task="copy_numbers", num_digits=NUM_DIGITS, delay_a_character_s=0.02),
)


def grade(rollout: Rollout) -> Reward:
    """Scores by the share of characters in their places; the component `exact` is 1 for a completely right answer."""
    answer, reference = rollout.response, str(rollout.ground_truth)
    return Reward(value=share_right(answer, reference), components={"exact": float(answer == reference)})


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedRule:
    """Scores by the share of characters in their places, after a delay.

    The delay depends on the seed, the rollout's place, and the length of its answer.
    """

    seed: int
    delay_a_character_s: float = 0.0

    async def compute_score(self, rollout: Rollout) -> Reward:
        luck = random.Random(f"{self.seed}/{rollout.group_id}/{rollout.index}").random()
        await asyncio.sleep(luck * _LONGEST_DELAY_S + len(rollout.response) * self.delay_a_character_s)
        return grade(rollout)


def copying_settings(schedule: str, *, seed: int, steps: int, **options: Unpack[CopyingOptions]) -> RunSettings:
    """Returns the copying run under a schedule of this benchmark."""
    stream, max_staleness = SCHEDULES[schedule]
    return copying_run(
        "rewardflow.bench.learning.copying_runs:DelayedRule",
        stream=stream,
        max_staleness=max_staleness,
        seed=seed,
        steps=steps,
        **options,
    )


def losses_of(schedule: str) -> tuple[Loss, ...]:
    """Returns the losses to try: only stale rollouts need a correction."""
    _, max_staleness = SCHEDULES[schedule]
    return ("ppo", "decoupled") if max_staleness else ("ppo",)


def run_learning_benchmarks(
    *, quick: bool = False, seeds: Sequence[int] = SEEDS, steps: int = STEPS
) -> Iterator[LearningFigures]:
    """Yields figures as they are measured, task by task and schedule by schedule."""
    if not seeds:
        raise InvalidInput("at least one seed must be given, got none")
    for task, schedule in itertools.product(TASKS, _QUICK_SCHEDULES if quick else SCHEDULES):
        for loss in losses_of(schedule)[:1] if quick else losses_of(schedule):
            for seed in seeds[:_QUICK_SEEDS] if quick else seeds:
                yield measure(task, schedule, loss, seed=seed, steps=steps)


def measure(
    task: LearningTask,
    schedule: str,
    loss: Loss = "ppo",
    *,
    seed: int,
    steps: int,
    groups_per_step: int = GROUPS_PER_STEP,
) -> LearningFigures:
    settings = copying_settings(
        schedule,
        seed=seed,
        steps=steps,
        task=task.task,
        num_digits=task.num_digits,
        groups_per_step=groups_per_step,
        algorithm=replace(ALGORITHM, loss=loss),
    )
    reports: list[StepReport] = []
    began_s = time.perf_counter()
    asyncio.run(_train(settings, task, reports))
    last = reports[-LAST_STEPS:]
    scores = [report.score_mean or 0.0 for report in reports]
    reached = reached_step(scores)
    return LearningFigures(
        task=task.name,
        schedule=schedule,
        loss=loss,
        seed=seed,
        steps=steps,
        exact=fmean(report.component_means["exact"] for report in last),
        final_reward=fmean(scores[-LAST_STEPS:]),
        seconds=time.perf_counter() - began_s,
        reached_step=reached,
        reached_s=None if reached is None else sum(report.duration_s for report in reports[:reached]),
    )


def reached_step(scores: Sequence[float]) -> int | None:
    """Returns after how many steps the mean score of the last `WINDOW` steps was at the target; None: never."""
    ends = range(WINDOW, len(scores) + 1)
    return next((end for end in ends if fmean(scores[end - WINDOW : end]) >= TARGET), None)


async def _train(settings: RunSettings, task: LearningTask, reports: list[StepReport]) -> None:
    rule = DelayedRule(seed=settings.seed, delay_a_character_s=task.delay_a_character_s)
    agent = RewardAgent(rule, max_concurrency=SLOTS)
    async with embedded(settings, agent=agent, on_step=reports.append) as run:
        await run.train()


def report_of(figures: Iterable[LearningFigures]) -> dict[str, Any]:
    """Returns the whole benchmark as one JSON object."""
    every = list(figures)
    return {"learning": [asdict(one) for one in every], "rows": [row.to_json() for row in rows_of(every)]}


def rows_of(figures: Iterable[LearningFigures]) -> Iterator[BenchmarkRow]:
    """Yields a row for each run as it ends; at the end those that compare schedules with the synchronous one."""
    every: list[LearningFigures] = []
    for one in figures:
        every.append(one)
        steps = "never reached" if one.reached_step is None else f"reached in {one.reached_step} steps"
        name = f"{one.task}, {one.schedule}, {one.loss}, seed {one.seed}: final reward, {TARGET} {steps}"
        yield BenchmarkRow(name=name, value=one.final_reward, unit="")
    yield from summary_rows(every, baseline=SYNCHRONOUS)
