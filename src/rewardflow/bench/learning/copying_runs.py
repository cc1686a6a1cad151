"""`rewardflow bench learning`: measures whether overlapping makes learning worse, over tasks, schedules and seeds.

A tiny model learns two tasks from random weights, once for each staleness, correction and seed; without staleness also
with an engine that computes differently from the trainer, as vLLM does:

    copy      copies three digits and stops; its judge's delays are random
    lengths   copies one to three digits and stops; its judge's delays grow with the length of the answer

Schedules of the same staleness have bit-equal weights, whatever the delays (tests/runtime/test_exact.py). So the steps
to the target are counted once for each staleness, without delays, many seeds together (`stacked_runs`), and a
schedule's seconds are these steps times the seconds of its step, which are measured with delays. Runs without a
correction are reported under every schedule of their staleness, those with one under the first alone.

Always true: runs of a task have the same settings except staleness, correction, engine and seed; a run that never
reaches the target counts as slower than all others, not as missing; scores are those of samples at temperature 1, not
of greedy decoding, which would be better.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any, Unpack

from rewardflow.bench.benchmark_row import BenchmarkRow
from rewardflow.bench.learning.corrections import CORRECTIONS, PLAIN, NamedCorrection
from rewardflow.bench.learning.engine_dtype import ROUNDING_ENGINES, EngineDtype
from rewardflow.bench.learning.learning_summary import LearningFigures, summary_rows
from rewardflow.bench.learning.target_reward import TARGET, WINDOW, final_reward, reached_step
from rewardflow.errors import InvalidInput
from rewardflow.flow.reports import StepReport
from rewardflow.mock_judge.marking import share_right
from rewardflow.plan.named_schedules import SCHEDULES, SYNCHRONOUS, num_edge_steps
from rewardflow.reward.agent import RewardAgent
from rewardflow.runtime.local import embedded
from rewardflow.settings.copying_run import (
    GROUPS_PER_STEP,
    NUM_DIGITS,
    STEPS,
    CopyingOptions,
    CopyingTask,
    copying_run,
)
from rewardflow.settings.run_settings import RunSettings
from rewardflow.types import Reward, Rollout

SEEDS = tuple(range(20))
SLOTS = 64  # with the delays below, the judge takes about as long for a step as a small CPU

ONE_STEP = "pipeline_one_step"
_ONE_OF_EACH_STALENESS = (SYNCHRONOUS, ONE_STEP, "staleness_2", "staleness_4")
_QUICK_SCHEDULES = (SYNCHRONOUS, ONE_STEP)
_TOGETHER = 10  # seeds; more would not fit the cache of a small CPU
_TIMED_STEPS = 12  # besides those that fill and drain the pipeline
_LONGEST_DELAY_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningTask:
    """A task that the tiny model can learn, and the delays of its judge."""

    name: str
    task: CopyingTask
    num_digits: int
    steps: int = STEPS
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningVariant:
    """What a row of the benchmark changes: the staleness by its schedule, the correction, the engine."""

    schedule: str
    correction: NamedCorrection = PLAIN
    engine: EngineDtype = "float32"


def variants(*, quick: bool = False) -> Iterator[LearningVariant]:
    """Yields the synchronous run first. `quick` leaves out corrections, rounding engines and larger stalenesses."""
    if quick:
        yield from (LearningVariant(schedule=schedule) for schedule in _QUICK_SCHEDULES)
        return
    for schedule in _ONE_OF_EACH_STALENESS:
        _, max_staleness = SCHEDULES[schedule]
        for correction in CORRECTIONS if max_staleness else (PLAIN,):
            yield LearningVariant(schedule=schedule, correction=correction)
    for engine, correction in itertools.product(ROUNDING_ENGINES, CORRECTIONS):
        yield LearningVariant(schedule=SYNCHRONOUS, correction=correction, engine=engine)


def run_learning_benchmarks(*, quick: bool = False, seeds: Sequence[int] = SEEDS) -> Iterator[LearningFigures]:
    """Yields figures as they are measured, task by task."""
    if not seeds:
        raise InvalidInput("at least one seed must be given, got none")
    for task in TASKS:
        step_s: dict[str, float] = {}
        for variant in variants(quick=quick):
            schedules = schedules_of(variant)
            step_s |= {name: step_seconds(task, name) for name in schedules if name not in step_s}
            for start in range(0, len(seeds), _TOGETHER):
                together = seeds[start : start + _TOGETHER]
                learnt = measure(task, variant, seeds=together, step_s=step_s[variant.schedule])
                yield from learnt
                yield from (one.under(name, step_s[name]) for name in schedules[1:] for one in learnt)


def schedules_of(variant: LearningVariant) -> tuple[str, ...]:
    """Returns the schedules under which the runs of a variant are reported, its own first."""
    if variant != LearningVariant(schedule=variant.schedule):
        return (variant.schedule,)
    _, staleness = SCHEDULES[variant.schedule]
    alike = (name for name, (_, own) in SCHEDULES.items() if own == staleness and name != variant.schedule)
    return variant.schedule, *alike


def measure(
    task: LearningTask,
    variant: LearningVariant,
    *,
    seeds: Sequence[int],
    step_s: float,
    groups_per_step: int = GROUPS_PER_STEP,
) -> list[LearningFigures]:
    """Learns with several seeds, without delays; `step_s` is what a step takes with them."""
    from rewardflow.bench.learning.stacked_runs import train_together  # the other benchmarks run without torch

    settings = copying_settings(
        variant.schedule,
        seed=seeds[0],
        steps=task.steps,
        task=task.task,
        num_digits=task.num_digits,
        groups_per_step=groups_per_step,
        algorithm=variant.correction.algorithm,
    )
    began_s = time.perf_counter()
    runs = train_together(settings, seeds, engine=variant.engine)
    seconds = (time.perf_counter() - began_s) / len(seeds)
    found = []
    for seed, run in zip(seeds, runs, strict=True):
        scores = [step.score for step in run]
        reached = reached_step(scores)
        found.append(
            LearningFigures(
                task=task.name,
                schedule=variant.schedule,
                correction=variant.correction.name,
                engine=variant.engine,
                seed=seed,
                steps=task.steps,
                exact=fmean(step.exact for step in run[-WINDOW:]),
                final_reward=final_reward(scores),
                seconds=seconds,
                reached_step=reached,
                reached_s=None if reached is None else reached * step_s,
            )
        )
    return found


def step_seconds(task: LearningTask, schedule: str, *, groups_per_step: int = GROUPS_PER_STEP) -> float:
    """Measures what a step of this schedule takes with the delays of the task's judge."""
    num_edge = num_edge_steps(schedule)
    settings = copying_settings(
        schedule,
        seed=0,
        steps=_TIMED_STEPS + 2 * num_edge,
        task=task.task,
        num_digits=task.num_digits,
        groups_per_step=groups_per_step,
    )
    rule = DelayedRule(seed=0, delay_a_character_s=task.delay_a_character_s)
    reports = asyncio.run(_train(settings, RewardAgent(rule, max_concurrency=SLOTS)))
    return median(report.duration_s for report in reports[num_edge:-num_edge])


async def _train(settings: RunSettings, agent: RewardAgent) -> list[StepReport]:
    reports: list[StepReport] = []
    async with embedded(settings, agent=agent, on_step=reports.append) as run:
        await run.train()
    return reports


def report_of(figures: Iterable[LearningFigures]) -> dict[str, Any]:
    """Returns the whole benchmark as one JSON object."""
    every = list(figures)
    return {"learning": [asdict(one) for one in every], "rows": [row.to_json() for row in rows_of(every)]}


def rows_of(figures: Iterable[LearningFigures]) -> Iterator[BenchmarkRow]:
    """Yields a row for each run as it ends; at the end those that compare schedules with the synchronous one."""
    every: list[LearningFigures] = []
    for one in figures:
        every.append(one)
        if one.schedule not in _ONE_OF_EACH_STALENESS:
            continue  # the same run, under another schedule
        steps = "never reached" if one.reached_step is None else f"reached in {one.reached_step} steps"
        name = f"{one.task}, {one.label}, seed {one.seed}: final reward, {TARGET} {steps}"
        yield BenchmarkRow(name=name, value=one.final_reward, unit="")
    yield from summary_rows(every, baseline=SYNCHRONOUS)
