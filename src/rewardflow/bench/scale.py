"""`rewardflow bench scale`: measures what the agent and training cost with several processes, against their bars.

Always true: the benchmark starts its own Ray cluster on this machine and stops it afterwards.
"""

from __future__ import annotations

import asyncio
import gc
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rewardflow.bench.benchmark_row import BenchmarkRow
from rewardflow.bench.bounds import list_schedule, time_of_groups
from rewardflow.bench.scale_training import training
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.latency import LONGEST_S, SHORTEST_S
from rewardflow.runtime.on_ray.cluster import private_cluster
from rewardflow.shared_agent.client import SharedAgent
from rewardflow.shared_agent.ray_actor import connect, stop
from rewardflow.shared_agent.spec import AgentSpec
from rewardflow.types import Rollout

GROUPS, GROUP_SIZE, SLOTS = 1024, 5, 256
_SCALE = 0.02  # of the original delays: a step of 8 s instead of 7 minutes
_RPM, _TIME_SCALE = 600, 20


async def noop(solution_str: str) -> float:
    return 1.0


async def wait(extra_info: dict[str, Any]) -> float:
    await asyncio.sleep(extra_info["delay_s"])
    return 1.0


def run_scale_benchmarks(*, quick: bool = False) -> Iterator[BenchmarkRow]:
    """Yields rows as they are measured; `quick` leaves out the repetitions that make figures steadier."""
    repeats = 1 if quick else 3
    with private_cluster():
        yield from throughput(repeats=repeats)
        yield from original_experiment(repeats=repeats)
        yield from fair_shares(seconds=6.0 if quick else 15.0)
        yield from training(steps=4) if quick else training()


# -- what a verdict costs --------------------------------------------------------------------------------------------


def throughput(*, repeats: int, count: int = 30_000) -> Iterator[BenchmarkRow]:
    """Takes the best of several runs, as in `bench agent`."""
    local = max(asyncio.run(_local_verdicts_per_s(count)) for _ in range(repeats))
    shared, scored = asyncio.run(_shared_verdicts_per_s(count, repeats))
    with tempfile.TemporaryDirectory() as folder:
        recorded, _ = asyncio.run(_shared_verdicts_per_s(count, repeats, run_dir=Path(folder) / "run"))
    stop(name="bench-noop")
    yield BenchmarkRow(
        name="shared agent: no-op verdicts a second, seen by the driver",
        value=shared,
        unit="1/s",
        yardstick=local,
        yardstick_name="agent in this process",
        bar=">= 15,000",
    )
    yield BenchmarkRow(
        name="shared agent: no-op verdicts a second, sample by sample",
        value=scored,
        unit="1/s",
        yardstick=shared,
        yardstick_name="by the batch",
    )
    yield BenchmarkRow(
        name="shared agent: no-op verdicts a second, with the run's record",
        value=recorded,
        unit="1/s",
        yardstick=shared,
        yardstick_name="without a run directory",
    )


async def _local_verdicts_per_s(count: int) -> float:
    async with RewardAgent(noop, max_concurrency=SLOTS) as agent:
        began_s = time.perf_counter()
        async for _ in agent.submit(_rollouts(count)):
            pass
        return count / (time.perf_counter() - began_s)


async def _shared_verdicts_per_s(count: int, repeats: int, *, run_dir: Path | None = None) -> tuple[float, float]:
    """Measures submitting by the batch, and one by one."""
    spec = AgentSpec.of(f"{__name__}:noop", max_concurrency=SLOTS)
    by_batch, by_sample = [], []
    async with connect(spec, name="bench-noop", run="bench", run_dir=run_dir) as agent:
        for step in range(repeats + 1):  # the first warms both sides up
            rollouts = _rollouts(count, step=step)
            gc.collect()
            began_s = time.perf_counter()
            async for _ in agent.submit(rollouts):
                pass
            by_batch.append(count / (time.perf_counter() - began_s))
            began_s = time.perf_counter()
            async with asyncio.TaskGroup() as tasks:
                for rollout in rollouts[: count // 3]:
                    tasks.create_task(agent.score(rollout))
            by_sample.append(count // 3 / (time.perf_counter() - began_s))
    return max(by_batch[1:]), max(by_sample[1:])


def _rollouts(count: int, *, step: int = 0) -> list[Rollout]:
    return [
        Rollout(
            group_id=str(i // GROUP_SIZE),
            index=i % GROUP_SIZE,
            group_size=GROUP_SIZE,
            response="an answer of the policy",
            step=step,
        )
        for i in range(count)
    ]


# -- the original experiment -----------------------------------------------------------------------------------------


def original_experiment(*, repeats: int) -> Iterator[BenchmarkRow]:
    rng = random.Random(0)
    delays_s = [rng.uniform(SHORTEST_S, LONGEST_S) * _SCALE for _ in range(GROUPS * GROUP_SIZE)]
    ends_s = list_schedule(delays_s, SLOTS)
    runs = asyncio.run(_original(delays_s, repeats))
    stop(name="bench-original")
    yield BenchmarkRow(
        name=f"shared agent, original workload, {SLOTS} slots: all verdicts",
        value=min(total_s for total_s, _ in runs),
        unit="s",
        yardstick=max(ends_s),
        yardstick_name="list-scheduling bound",
        bar="<= 1.10",
        bar_on="ratio",
    )
    yield BenchmarkRow(
        name=f"shared agent, original workload, {SLOTS} slots: first quarter of the groups",
        value=min(first_s for _, first_s in runs),
        unit="s",
        yardstick=time_of_groups(ends_s, GROUP_SIZE, GROUPS // 4),
        yardstick_name="best group-major order",
    )


async def _original(delays_s: list[float], repeats: int) -> list[tuple[float, float]]:
    spec = AgentSpec.of(f"{__name__}:wait", max_concurrency=SLOTS)
    runs = []
    async with connect(spec, name="bench-original", run="bench") as agent:
        for step in range(repeats):
            rollouts = [
                Rollout(
                    group_id=str(i // GROUP_SIZE),
                    index=i % GROUP_SIZE,
                    group_size=GROUP_SIZE,
                    response="",
                    step=step,
                    extra_info={"delay_s": delay_s},
                )
                for i, delay_s in enumerate(delays_s)
            ]
            began_s = time.perf_counter()
            ticket = agent.submit(rollouts)
            await ticket.take(GROUPS // 4)
            first_s = time.perf_counter() - began_s
            await ticket.all()
            runs.append((time.perf_counter() - began_s, first_s))
    return runs


# -- two jobs and one service ----------------------------------------------------------------------------------------


def fair_shares(*, seconds: float) -> Iterator[BenchmarkRow]:
    """Measures two jobs' shares of a service of 600 requests a minute, with time 20 times as fast."""
    together, shares, alone = asyncio.run(_two_jobs(seconds))
    stop(name="bench-shares")
    limit_per_s = _RPM * _TIME_SCALE / 60
    yield BenchmarkRow(
        name="two jobs, one service: calls a second, together",
        value=together,
        unit="1/s",
        yardstick=limit_per_s,
        yardstick_name="600 a minute, 20 times as fast",
        bar="<= 1.02",
        bar_on="ratio",
    )
    yield BenchmarkRow(name="two jobs, one service: the smaller share", value=min(shares), unit="", bar=">= 0.45")
    yield BenchmarkRow(
        name="two jobs, one service: the one that is left, of the rate",
        value=alone / limit_per_s,
        unit="",
        yardstick_name=f"from {5 / _TIME_SCALE:g} s after the other's end",
        bar=">= 0.95",
    )


async def _two_jobs(seconds: float) -> tuple[float, tuple[float, float], float]:
    """Returns both jobs' calls a second, their shares, and the calls a second of the job that stays."""
    spec = AgentSpec.of(f"{__name__}:noop", rpm=_RPM * _TIME_SCALE, max_concurrency=SLOTS)
    async with connect(spec, name="bench-shares", run="stays") as one:
        async with connect(spec, name="bench-shares", run="ends") as other:
            for agent in (one, other):
                agent.submit(_rollouts(20_000))
            await asyncio.sleep(1.0)  # past the burst at the start
            first, second = await _counted(one, other, seconds=seconds)
        await asyncio.sleep(5 / _TIME_SCALE)
        (alone,) = await _counted(one, seconds=seconds / 3)
    together = first + second
    return together, (first / together, second / together), alone


async def _counted(*agents: SharedAgent, seconds: float) -> list[float]:
    """Counts the verdicts a second of each job."""
    before = [agent.statistics().verdicts.scored for agent in agents]
    began_s = time.perf_counter()
    await asyncio.sleep(seconds)
    took_s = time.perf_counter() - began_s
    return [(agent.statistics().verdicts.scored - count) / took_s for agent, count in zip(agents, before, strict=True)]
