"""`rewardflow bench schedules`: measures the step of each schedule beside its floor.

The benchmark trains the tiny model once under each schedule, with delays as in the original experiment: 5120 calls of 1
to 40 s a step, which take 410 s with 256 at once, beside 177 s of compute. These 177 s are the original's synchronous
step without its calls: all compute but log-probs, which ran during the calls. A synchronous run measures this machine's
compute; the delays are scaled so that calls and compute have the original's ratio.

Always true: every schedule waits for the same calls and trains on the same prompts; a step's time is the mean over the
steps after the first and before the last, because those two fill and drain the pipeline.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from rewardflow.bench.critical_path import critical_path
from rewardflow.bench.delayed_reward import DelayedReward, delayed_run
from rewardflow.bench.observed_run import ObservedRun, observe
from rewardflow.bench.schedule_figures import PUBLISHED_CHANGES, MeasuredSchedule, mean_of_seeds
from rewardflow.errors import InvalidInput
from rewardflow.flow.flow_parts import FlowParts
from rewardflow.flow.schedule import Schedule
from rewardflow.plan.named_schedules import SCHEDULES as PLANNED
from rewardflow.plan.named_schedules import SCHEDULES_OF_ORIGINAL
from rewardflow.plan.original_recipe import OneBatchReward, WholeBatchGenerator
from rewardflow.reward.agent import RewardAgent
from rewardflow.runtime.local import embedded
from rewardflow.settings.run_settings import RunSettings

SCHEDULES = {name: PLANNED[name] for name in (*SCHEDULES_OF_ORIGINAL, "stream_0", "stream_1")}
SEEDS = (0,)
ORIGINAL_COMPUTE_S = 177.0  # a step, without log-probs
_MIN_STEPS = 3  # one fills, one drains, and one is left


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSize:
    """The size of the training runs. Smaller sizes keep the original's ratio of slots to the calls of a step."""

    groups_per_step: int = 1024
    group_size: int = 5
    mini_batches: int = 4
    steps: int = 7
    slots: tuple[int, ...] = (256, 1024)
    micro_batch_tokens: int = 4096
    hidden: int = 192

    def __post_init__(self) -> None:
        if self.steps < _MIN_STEPS:
            raise InvalidInput(f"steps must be at least {_MIN_STEPS}, of which the middle counts, got {self.steps}")

    @property
    def calls_per_step(self) -> int:
        return self.groups_per_step * self.group_size


FULL = BenchSize()
QUICK = BenchSize(groups_per_step=128, steps=4, slots=(32, 128), micro_batch_tokens=512, hidden=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variant:
    """One way to train."""

    name: str
    slots: int
    as_original: bool = False

    def schedule(self, size: BenchSize) -> Schedule:
        stream, max_staleness = SCHEDULES[self.name]
        return Schedule(
            groups_per_step=size.groups_per_step,
            mini_batches=size.mini_batches,
            stream=stream,
            max_staleness=max_staleness,
        )


def run_schedule_benchmarks(
    *, quick: bool = False, seeds: Sequence[int] = SEEDS, size: BenchSize | None = None
) -> Iterator[MeasuredSchedule]:
    """Yields figures as they are measured, means over the seeds; `synchronous`, the yardstick of others, is first."""
    size = size or (QUICK if quick else FULL)
    scales = {seed: _compute_of(size, seed, scale=0.0).scale for seed in seeds}
    scales = {seed: _compute_of(size, seed, scale=scales[seed]).scale for seed in seeds}
    blocks = [[_Variant(name=name, slots=slots) for name in SCHEDULES] for slots in size.slots]
    blocks.append([_Variant(name=name, slots=size.slots[0], as_original=True) for name in PUBLISHED_CHANGES])
    for block in blocks:
        yield from _measure_block(block, size, scales)


def _measure_block(
    block: Sequence[_Variant], size: BenchSize, scales: Mapping[int, float]
) -> Iterator[MeasuredSchedule]:
    """Measures the variants of one comparison right after measuring compute, because the machine's speed drifts."""
    undisturbed_s = {seed: _compute_of(size, seed, scale=scale).compute_s for seed, scale in scales.items()}
    synchronous_s: float | None = None
    for variant in block:
        figures = mean_of_seeds(
            [_measure(variant, size, seed, scale, undisturbed_s[seed]) for seed, scale in scales.items()]
        )
        synchronous_s = synchronous_s or figures.step_s
        yield replace(figures, change=figures.step_s / synchronous_s - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Undisturbed:
    """The device's work in a step without calls beside it."""

    compute_s: float
    log_probs_s: float

    @property
    def scale(self) -> float:
        """Seconds here for one second of the original."""
        return (self.compute_s - self.log_probs_s) / ORIGINAL_COMPUTE_S


def _compute_of(size: BenchSize, seed: int, *, scale: float) -> Undisturbed:
    """Measures compute in a synchronous run, which with delays trains nothing while calls are out.

    With `scale=0` rewards answer at once, the agent handles a step's verdicts while the step generates, and the result
    is only a rough first estimate of the delays' scale.
    """
    steps = _train(_Variant(name="synchronous", slots=size.slots[0]), size, seed, scale=scale).steps[1:-1]
    return Undisturbed(
        compute_s=fmean(step.compute_s for step in steps), log_probs_s=fmean(step.log_probs_s for step in steps)
    )


def _measure(
    variant: _Variant, size: BenchSize, seed: int, scale: float, undisturbed_compute_s: float
) -> MeasuredSchedule:
    observed = _train(variant, size, seed, scale=scale)
    published_s = critical_path(
        observed.steps, variant.schedule(size), variant.slots, one_batch_at_a_time=variant.as_original
    )
    reports, steps = observed.reports[1:-1], observed.steps[1:-1]
    return MeasuredSchedule(
        schedule=variant.name,
        slots=variant.slots,
        as_original=variant.as_original,
        step_s=fmean(report.duration_s for report in reports),
        critical_path_s=(published_s[-2] - published_s[0]) / len(steps),
        service_s=fmean(step.call_s for step in steps) / variant.slots,
        compute_s=fmean(step.compute_s for step in steps),
        undisturbed_compute_s=undisturbed_compute_s,
        scale=scale,
        exposed_s=fmean(report.usage.exposed_s for report in reports),
        hidden_s=fmean(report.usage.hidden_s for report in reports),
        final_reward=observed.reports[-1].score_mean or 0.0,
    )


def _train(variant: _Variant, size: BenchSize, seed: int, *, scale: float) -> ObservedRun:
    gc.collect()  # so that this run does not pay for the garbage of the one before
    return asyncio.run(_train_on_loop(variant, size, seed, scale))


async def _train_on_loop(variant: _Variant, size: BenchSize, seed: int, scale: float) -> ObservedRun:
    reward = DelayedReward(
        seed=seed, scale=scale, steps=size.steps, groups_per_step=size.groups_per_step, group_size=size.group_size
    )
    held_back = OneBatchReward(reward, calls_per_step=size.calls_per_step) if variant.as_original else reward
    agent = RewardAgent(held_back, max_concurrency=variant.slots, timeout_s=None)
    async with embedded(_settings(variant, size, seed), agent=agent) as run:
        parts: FlowParts = run.parts
        if variant.as_original:
            parts = replace(parts, generator=WholeBatchGenerator(parts.generator))
        return await observe(parts, steps=size.steps, delay_of=reward.delay_s)


def _settings(variant: _Variant, size: BenchSize, seed: int) -> RunSettings:
    return delayed_run(
        variant.schedule(size),
        group_size=size.group_size,
        steps=size.steps,
        seed=seed,
        hidden=size.hidden,
        micro_batch_tokens=size.micro_batch_tokens,
    )
