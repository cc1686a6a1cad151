"""Measures a training step on Ray actors beside the same step in one process: part of `rewardflow bench scale`.

Always true: all rows train the same model on the same rollouts with one thread for each process, and a step's time is
the median over the steps after the first and before the last; a machine with fewer cores than processes shares its
cores, and the rows say how many it has.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import statistics
from collections.abc import Iterator

from rewardflow.bench.benchmark_row import BenchmarkRow
from rewardflow.flow.reports import StepReport
from rewardflow.flow.schedule import Schedule
from rewardflow.runtime.open_run import open_run
from rewardflow.settings.run_settings import (
    DataSettings,
    GenerationSettings,
    PolicySettings,
    RunSettings,
    RuntimeSettings,
    TrainerSettings,
)

_STEPS = 8
_RANKS = (1, 2)


async def by_length(response: str) -> float:
    return len(response) / 10 - 0.001 * sum(map(ord, response))


def training(*, steps: int = _STEPS, hidden: int = 256, groups: int = 16) -> Iterator[BenchmarkRow]:
    """Trains in the Ray cluster that this process has joined; yields no rows if training is not installed."""
    if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")):
        return
    alone_s = _step_s(_settings(RuntimeSettings(), steps=steps, hidden=hidden, groups=groups))
    yield BenchmarkRow(name="training in one process: a step", value=alone_s, unit="s")
    for ranks in _RANKS:
        runtime = RuntimeSettings(kind="ray", address="auto", ranks=ranks)
        yield BenchmarkRow(
            name=f"training on Ray, FSDP2, {ranks} rank{'s' if ranks > 1 else ''}: a step",
            value=_step_s(_settings(runtime, steps=steps, hidden=hidden, groups=groups)),
            unit="s",
            yardstick=alone_s,
            yardstick_name=f"one process; {os.cpu_count()} cores",
        )


def _settings(runtime: RuntimeSettings, *, steps: int, hidden: int, groups: int) -> RunSettings:
    return RunSettings(
        reward=f"{__name__}:by_length",
        data=DataSettings(task="copy_digits"),
        steps=steps,
        policy=PolicySettings(tiny_hidden=hidden, tiny_layers=4),
        schedule=Schedule(groups_per_step=groups, mini_batches=2, stream="mini_batch", order="fixed"),
        generation=GenerationSettings(group_size=8, max_prompt_tokens=8, max_response_tokens=32),
        trainer=TrainerSettings(threads=1),
        runtime=runtime,
    )


def _step_s(settings: RunSettings) -> float:
    reports: list[StepReport] = []

    async def run() -> None:
        async with open_run(settings, tell=lambda _: None, on_step=reports.append, probes=False) as opened:
            await opened.train()

    asyncio.run(run())
    return statistics.median(report.duration_s for report in reports[1:-1])
