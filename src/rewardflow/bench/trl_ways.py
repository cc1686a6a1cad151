"""`rewardflow bench trl`: TRL with a slow judge, in three ways: a thread pool, our function, and our trainer.

Step times are measured with the judge's delays, which are scaled to this machine: the slowest verdict takes as long,
compared with what a step computes, as all verdicts of a step took in the original experiment. Learning is measured
without delays, because they do not change which weights generate what. Seconds to a target are the steps to it, times
the step time of the way.

Always true: each way trains the same model (`policy/taught_tiny.py`) on the same prompts with the same seeds, one
after the other, in a process of its own; the first steps, in which libraries load, do not count.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import rewardflow
from rewardflow.bench.benchmark_row import BenchmarkRow
from rewardflow.bench.contender import ContenderFailed
from rewardflow.bench.contenders.judged_workload import (
    DIGITS,
    FUNCTION,
    MODEL,
    PLAIN,
    SLOWEST_S,
    TRAINER,
    WAYS,
    JudgedResult,
    JudgedWorkload,
)

SEEDS = (0, 1, 2, 3, 4)
JUDGE_TO_COMPUTE = 410 / 177  # seconds that the original's judge and its devices were busy for a step
STEP_BAR = "<= 0.8"
TARGET = 0.9
_WARMUP_STEPS = 3
_TIMED_STEPS, _QUICK_TIMED_STEPS = 20, 10
_LEARNING_STEPS = 120
_SMOOTHED_STEPS = 10
_NAMES = {
    PLAIN: "TRL, a function with 256 threads",
    FUNCTION: "TRL, as_batch_function",
    TRAINER: "rewardflow.adapters.trl.GRPOTrainer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrlFigures:
    """`step_s` by way; `rewards` of each step by way and seed."""

    compute_s: float  # of a step with a judge that answers at once
    step_s: Mapping[str, float]
    rewards: Mapping[str, Mapping[int, Sequence[float]]]
    versions: Mapping[str, str]

    def final_reward(self, way: str) -> float:
        return fmean(fmean(one[-_SMOOTHED_STEPS:]) for one in self.rewards[way].values())

    def steps_to_target(self, way: str) -> list[int | None]:
        """Returns, for each seed, the step at which the mean of the last ten rewards reached the target."""
        return [_steps_to(TARGET, one) for one in self.rewards[way].values()]

    def seconds_to_target(self, way: str) -> float | None:
        """Returns the median over the seeds; None if half of them or more did not reach the target."""
        seconds = [float("inf") if steps is None else steps * self.step_s[way] for steps in self.steps_to_target(way)]
        middle = median(seconds)
        return None if middle == float("inf") else middle


def run_trl_benchmark(*, python: str | None, quick: bool, seeds: Sequence[int]) -> TrlFigures:
    python = python or sys.executable
    _require_trl(python)
    steps = _WARMUP_STEPS + (_QUICK_TIMED_STEPS if quick else _TIMED_STEPS)
    at_once = _trained(python, JudgedWorkload(way=FUNCTION, steps=steps, scale=0.0, seed=seeds[0]))
    compute_s = median(at_once.step_s[_WARMUP_STEPS:])
    scale = JUDGE_TO_COMPUTE * compute_s / SLOWEST_S
    timed = {way: _trained(python, JudgedWorkload(way=way, steps=steps, scale=scale, seed=seeds[0])) for way in WAYS}
    learnt = {} if quick else {way: _learnt(python, way, seeds) for way in (FUNCTION, TRAINER)}
    return TrlFigures(
        compute_s=compute_s,
        step_s={way: median(result.step_s[_WARMUP_STEPS:]) for way, result in timed.items()},
        rewards=learnt,
        versions=timed[PLAIN].versions,
    )


def _require_trl(python: str) -> None:
    """Raises before a model is made for nothing."""
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('trl') is None)"
    try:
        has_trl = subprocess.run((python, "-c", look)).returncode == 0
    except OSError as error:
        raise ContenderFailed(f"{python} cannot be run: {error.strerror}") from error
    if not has_trl:
        raise ContenderFailed(
            f"{python} has no trl; name an interpreter that has it with --trl-python, or run `make bench-trl`"
        )


def _learnt(python: str, way: str, seeds: Sequence[int]) -> dict[int, list[float]]:
    workloads = [JudgedWorkload(way=way, steps=_LEARNING_STEPS, scale=0.0, seed=seed) for seed in seeds]
    return {workload.seed: _trained(python, workload).rewards for workload in workloads}


def _trained(python: str, workload: JudgedWorkload) -> JudgedResult:
    """Runs one way in its own process, which finds this package without the rest of this environment."""
    from rewardflow.policy.taught_tiny import save_taught_tiny

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        workload.write(folder)
        save_taught_tiny(folder / MODEL, num_digits=DIGITS, seed=workload.seed)
        (folder / "alone").mkdir()
        (folder / "alone" / "rewardflow").symlink_to(Path(rewardflow.__file__).parent, target_is_directory=True)
        module = "rewardflow.bench.contenders.trl_judged"
        environment = {**os.environ, "PYTHONPATH": str(folder / "alone"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        ended = subprocess.run((python, "-m", module, name), env=environment, capture_output=True, text=True)
        if ended.returncode:
            lines = [line for line in ended.stderr.splitlines() if line.strip()]
            raise ContenderFailed(
                f"training with TRL ended with {ended.returncode}: {lines[-1] if lines else 'it said nothing'}"
            )
        return JudgedResult.read(folder)


def _steps_to(target: float, rewards: Sequence[float]) -> int | None:
    ends = range(_SMOOTHED_STEPS, len(rewards) + 1)
    return next((end for end in ends if fmean(rewards[end - _SMOOTHED_STEPS : end]) >= target), None)


def rows_of(figures: TrlFigures) -> Iterator[BenchmarkRow]:
    waiting = figures.step_s[FUNCTION]
    for way, seconds in figures.step_s.items():
        yield BenchmarkRow(
            name=f"step: {_NAMES[way]}",
            value=seconds,
            unit="s",
            yardstick=waiting,
            yardstick_name=_NAMES[FUNCTION],
            bar=STEP_BAR if way == TRAINER else "",
            bar_on="ratio",
        )
    for way in figures.rewards:
        yield BenchmarkRow(
            name=f"final reward: {_NAMES[way]}",
            value=figures.final_reward(way),
            unit="",
            yardstick=figures.final_reward(FUNCTION),
            yardstick_name=_NAMES[FUNCTION],
        )
        seconds_to_target = figures.seconds_to_target(way)
        yield BenchmarkRow(
            name=f"seconds to a reward of {TARGET}: {_NAMES[way]}",
            value=float("nan") if seconds_to_target is None else seconds_to_target,
            unit="s",
            yardstick=figures.seconds_to_target(FUNCTION),
            yardstick_name=_NAMES[FUNCTION],
        )


def report_of(figures: TrlFigures) -> dict[str, Any]:
    """Returns the whole benchmark as one JSON object."""
    return {
        "compute_s": figures.compute_s,
        "slowest_verdict_s": JUDGE_TO_COMPUTE * figures.compute_s,
        "versions": dict(figures.versions),
        "step_s": dict(figures.step_s),
        "rewards": {way: {str(seed): one for seed, one in by.items()} for way, by in figures.rewards.items()},
        "steps_to_target": {way: figures.steps_to_target(way) for way in figures.rewards},
        "rows": [row.to_json() for row in rows_of(figures)],
    }
