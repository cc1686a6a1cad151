"""`rewardflow bench plan`: compares the planner with real runs.

The benchmark trains the tiny model under three schedules, with the original experiment's delays at a hundredth of their
length. The planner gets the durations of the synchronous run's parts and calls, and predicts each run's step; the table
shows the prediction beside the measurement.

Always true: the planner gets nothing from the two overlapped runs; a step's duration is the mean over the same steps in
both.
"""

from __future__ import annotations

import asyncio
import gc
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from statistics import fmean
from typing import Any, Final

from rewardflow.bench.benchmark_row import BenchmarkRow
from rewardflow.bench.delayed_reward import DelayedReward, delayed_run
from rewardflow.bench.observed_run import ObservedRun, observe
from rewardflow.plan.named_schedules import SYNCHRONOUS, num_edge_steps
from rewardflow.plan.settings import DeviceSettings, PlanSettings, ServiceSettings
from rewardflow.plan.simulate import simulate
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.latency import interpolate
from rewardflow.runtime.local import embedded
from rewardflow.settings.run_settings import RunSettings
from rewardflow.types import Rollout

SEEDS: Final = (0,)
CHECKED: Final = (SYNCHRONOUS, "pipeline", "pipeline_one_step")
_NUM_QUANTILES: Final = 501


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSize:
    """The size of the training runs."""

    prompts: int = 1024
    responses: int = 5
    mini_batches: int = 4
    steps: int = 8
    slots: int = 256
    scale: float = 0.01  # of the original's delays
    micro_batch_tokens: int = 4096
    hidden: int = 96


FULL: Final = CheckSize()
QUICK: Final = CheckSize(prompts=256, steps=5, slots=64, micro_batch_tokens=1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFigures:
    """The measured and the planned step of one schedule."""

    schedule: str
    measured_s: float
    predicted_s: float
    compute_s: float  # of the device, in the measured run

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1

    def to_json(self) -> dict[str, Any]:
        return {
            "schedule": self.schedule,
            "measured_s": self.measured_s,
            "predicted_s": self.predicted_s,
            "error": self.error,
            "compute_s": self.compute_s,
        }


def run_plan_benchmarks(
    *, quick: bool = False, seeds: Sequence[int] = SEEDS, size: CheckSize | None = None
) -> Iterator[CheckFigures]:
    """Yields each schedule's figures, the means over the seeds."""
    size = size or (QUICK if quick else FULL)
    by_seed = [list(_check(size, seed)) for seed in seeds]
    for figures in zip(*by_seed, strict=True):
        means: dict[str, Any] = {
            field.name: fmean(getattr(one, field.name) for one in figures)
            for field in fields(CheckFigures)
            if field.name != "schedule"
        }
        yield replace(figures[0], **means)


def rows_of(figures: Iterable[CheckFigures]) -> Iterator[BenchmarkRow]:
    for one in figures:
        yield BenchmarkRow(
            name=f"{one.schedule}: measured step, off by {one.error:+.1%} in the plan",
            value=one.measured_s,
            unit="s",
            yardstick=one.predicted_s,
            yardstick_name="planned",
        )
        yield BenchmarkRow(
            name=f"{one.schedule}: planned step off the measured one",
            value=abs(one.error) * 100,
            unit="%",
            bar="<= 5",
        )


def report_of(figures: Iterable[CheckFigures]) -> dict[str, Any]:
    return {"plan": [one.to_json() for one in figures]}


# -- measuring ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Measured:
    """A run, and the durations of its calls in the steps between the first and the last."""

    run: ObservedRun
    latencies_s: Sequence[float]


def _check(size: CheckSize, seed: int) -> Iterator[CheckFigures]:
    first = _train(SYNCHRONOUS, size, seed)
    settings = plan_of(first.run, first.latencies_s, size, seed)
    for name in CHECKED:
        measured = first if name == SYNCHRONOUS else _train(name, size, seed)
        planned = simulate(settings, name, steps=size.steps)
        edge = num_edge_steps(name)
        counted = slice(edge, size.steps - edge)
        yield CheckFigures(
            schedule=name,
            measured_s=fmean(report.duration_s for report in measured.run.reports[counted]),
            predicted_s=fmean(report.duration_s for report in planned.reports[counted]),
            compute_s=fmean(step.compute_s for step in measured.run.steps[counted]),
        )


def plan_of(run: ObservedRun, latencies_s: Sequence[float], size: CheckSize, seed: int) -> PlanSettings:
    """Turns the measurements of the steps between the first and the last into a plan's settings."""
    steps = run.steps[1:-1]
    other_s = fmean(report.usage.idle_s.get("other", 0.0) for report in run.reports[1:-1])
    mini_batches = list(chain.from_iterable(step.mini_batches for step in steps))
    ends = sorted(
        min(1.0, call.rollout_ended_s / step.generate_s) for step in steps for call in step.calls if step.generate_s
    )
    return PlanSettings(
        prompts=size.prompts,
        responses=size.responses,
        mini_batches=size.mini_batches,
        micro_batches=len(mini_batches[0].micro_batches),
        simulated_steps=size.steps,
        schedules=CHECKED,
        seed=seed,
        device=DeviceSettings(
            generation_s=fmean(step.generate_s for step in steps),
            log_probs_s=fmean(step.log_probs_s for step in steps),
            update_s=size.mini_batches
            * fmean(sum(micro.duration_s for micro in each.micro_batches) for each in mini_batches),
            optimizer_s=fmean(each.update_s for each in mini_batches),
            publish_s=fmean(step.publish_s for step in steps) + other_s,
            rollouts_end=_quantiles(ends),
        ),
        service=ServiceSettings(slots=size.slots, latency=_quantiles(sorted(latencies_s))),
    )


def _quantiles(ordered: Sequence[float]) -> tuple[float, ...]:
    return tuple(interpolate(ordered, i / (_NUM_QUANTILES - 1)) for i in range(_NUM_QUANTILES))


class _TimedReward:
    """Records how long each call took: its delay and the lateness of the loop."""

    def __init__(self, reward: DelayedReward) -> None:
        self._reward = reward
        self.latencies_s: defaultdict[int, list[float]] = defaultdict(list)

    async def compute_score(self, rollout: Rollout) -> float:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        score = await self._reward.compute_score(rollout)
        self.latencies_s[rollout.step].append(loop.time() - started_s)
        return score


def _train(name: str, size: CheckSize, seed: int) -> _Measured:
    gc.collect()  # so that this run does not pay for the garbage of the one before
    return asyncio.run(_train_on_loop(name, size, seed))


async def _train_on_loop(name: str, size: CheckSize, seed: int) -> _Measured:
    delayed = DelayedReward(
        seed=seed, scale=size.scale, steps=size.steps, groups_per_step=size.prompts, group_size=size.responses
    )
    reward = _TimedReward(delayed)
    agent = RewardAgent(reward, max_concurrency=size.slots, timeout_s=None)
    async with embedded(_run_settings(name, size, seed), agent=agent) as run:
        observed = await observe(run.parts, steps=size.steps, delay_of=delayed.delay_s)
    counted = range(1, size.steps - 1)
    return _Measured(observed, [seconds for step in counted for seconds in reward.latencies_s[step]])


def _run_settings(name: str, size: CheckSize, seed: int) -> RunSettings:
    shape = PlanSettings(
        prompts=size.prompts,
        responses=size.responses,
        mini_batches=size.mini_batches,
        simulated_steps=size.steps,
        schedules=CHECKED,
        device=DeviceSettings(generation_s=0.0, update_s=0.0),
    )
    return delayed_run(
        shape.schedule(name),
        group_size=size.responses,
        steps=size.steps,
        seed=seed,
        hidden=size.hidden,
        micro_batch_tokens=size.micro_batch_tokens,
    )
