"""`rewardflow bench agent`: measures what the reward agent costs and how close it comes to its bounds."""

from __future__ import annotations

import asyncio
import gc
import heapq
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rewardflow import clock
from rewardflow.bench.benchmark_row import BenchmarkRow
from rewardflow.bench.bounds import list_schedule, time_of_groups
from rewardflow.bench.verl_loop import verl_verdicts_per_s
from rewardflow.reward.agent import RewardAgent
from rewardflow.reward.simulated_service import SimulatedService
from rewardflow.types import Rollout

GROUPS, GROUP_SIZE = 1024, 5


def run_agent_benchmarks(*, quick: bool = False) -> Iterator[BenchmarkRow]:
    """Yields rows as they are measured; `quick` leaves out the repetitions that make figures steadier."""
    repeats = 1 if quick else 3
    yield from original_experiment(repeats=repeats)
    yield from throughput(repeats=repeats)
    yield from many_in_flight()
    yield from learnt_pace()


# -- the original experiment at 1/100 of its delays ------------------------------------------------------------------


def original_experiment(*, repeats: int = 3) -> Iterator[BenchmarkRow]:
    """Takes the best of several runs, of ours and of the yardstick: slower runs show noise of the machine."""
    rng = random.Random(0)
    delays_s = [rng.uniform(0.010, 0.400) for _ in range(GROUPS * GROUP_SIZE)]

    async def wait(extra_info: dict[str, Any]) -> float:
        await asyncio.sleep(extra_info["delay_s"])
        return 1.0

    def block(extra_info: dict[str, Any]) -> float:
        time.sleep(extra_info["delay_s"])
        return 1.0

    for slots in (256, 1024):
        ends_s = list_schedule(delays_s, slots)
        bound_s, quarter_s = max(ends_s), time_of_groups(ends_s, GROUP_SIZE, GROUPS // 4)
        for kind, reward in (("async", wait), ("plain", block)):
            runs = [asyncio.run(_original(reward, delays_s, slots)) for _ in range(repeats)]
            total_s, first_s = min(total for total, _ in runs), min(first for _, first in runs)
            name = f"original, {kind}, {slots} slots"
            yield BenchmarkRow(
                name=f"{name}: all verdicts",
                value=total_s,
                unit="s",
                yardstick=bound_s,
                yardstick_name="list-scheduling bound",
                bar="<= 1.05",
                bar_on="ratio",
            )
            yield BenchmarkRow(
                name=f"{name}: first quarter of the groups",
                value=first_s,
                unit="s",
                yardstick=quarter_s,
                yardstick_name="best group-major order",
                bar="<= 1.10",
                bar_on="ratio",
            )
    bare_s = min(asyncio.run(_bare_tasks(wait, delays_s)) for _ in range(repeats))
    total_s = min(asyncio.run(_original(wait, delays_s, len(delays_s)))[0] for _ in range(repeats))
    yield BenchmarkRow(
        name=f"original, async, {len(delays_s)} slots: all verdicts",
        value=total_s,
        unit="s",
        yardstick=bare_s,
        yardstick_name="bare asyncio tasks",
        bar="<= 1.15",
        bar_on="ratio",
    )


async def _original(reward: Callable[..., Any], delays_s: list[float], slots: int) -> tuple[float, float]:
    rollouts = [
        Rollout(
            group_id=str(i // GROUP_SIZE),
            index=i % GROUP_SIZE,
            group_size=GROUP_SIZE,
            response="",
            extra_info={"delay_s": delay_s},
        )
        for i, delay_s in enumerate(delays_s)
    ]
    loop = asyncio.get_running_loop()
    async with RewardAgent(reward, max_concurrency=slots) as agent:
        await _until_workers_are_up(agent, slots)
        gc.collect()  # so that this row does not pay for the garbage of earlier rows
        began_s = loop.time()
        ticket = agent.submit(rollouts)
        await ticket.take(GROUPS // 4)
        first_s = loop.time() - began_s
        await ticket.all()
        return loop.time() - began_s, first_s


async def _until_workers_are_up(agent: RewardAgent, slots: int) -> None:
    """Starts the worker threads before the clock: training starts them once, not once a step."""
    while any(  # noqa: ASYNC110 (a benchmark may poll for a state that nothing else reports)
        worker.started < slots for worker in agent.statistics().workers.values()
    ):
        await asyncio.sleep(0.01)


async def _bare_tasks(reward: Callable[..., Any], delays_s: list[float]) -> float:
    """Makes the same calls of the same function, each in a task, and nothing else."""
    results: list[float] = []

    async def call(delay_s: float) -> None:
        results.append(await reward(extra_info={"delay_s": delay_s}))

    gc.collect()
    began_s = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for delay_s in delays_s:
            tasks.create_task(call(delay_s))
    return time.perf_counter() - began_s


# -- what governance costs -------------------------------------------------------------------------------------------


async def _noop(solution_str: str) -> float:
    return 1.0


def _plain_noop(solution_str: str) -> float:
    return 1.0


def throughput(*, repeats: int = 3, count: int = 30_000) -> Iterator[BenchmarkRow]:
    rollouts = _groups(count)
    bare = max(asyncio.run(_bare_workers(rollouts)) for _ in range(repeats))
    pool = _thread_pool(rollouts[: count // 3])
    ours = max(asyncio.run(_verdicts_per_s(rollouts)) for _ in range(repeats))
    yield BenchmarkRow(
        name="no-op verdicts a second",
        value=ours,
        unit="1/s",
        yardstick=bare,
        yardstick_name="bare loop of 256 workers",
        bar=">= 30,000",
    )
    yield BenchmarkRow(
        name="no-op, against a thread pool", value=ours, unit="1/s", yardstick=pool, yardstick_name="256 threads"
    )
    with tempfile.TemporaryDirectory() as folder:
        rates = [
            asyncio.run(_verdicts_per_s(rollouts, journal=Path(folder) / f"{i}.db", run=str(i))) for i in range(repeats)
        ]
    yield BenchmarkRow(
        name="no-op verdicts a second, journal at synchronous=FULL",
        value=max(rates),
        unit="1/s",
        yardstick=ours,
        yardstick_name="without journal",
        bar=">= 10,000",
    )
    verl = verl_verdicts_per_s(count=2000)
    if verl is not None:
        yield BenchmarkRow(
            name="no-op, against verl's reward loop", value=ours, unit="1/s", yardstick=verl, yardstick_name="verl"
        )


def _groups(count: int, size: int = GROUP_SIZE) -> list[Rollout]:
    return [
        Rollout(group_id=str(i // size), index=i % size, group_size=size, response="an answer of the policy")
        for i in range(count)
    ]


async def _verdicts_per_s(rollouts: list[Rollout], **options: Any) -> float:
    async with RewardAgent(_noop, max_concurrency=256, **options) as agent:
        gc.collect()
        began_s = time.perf_counter()
        async for _ in agent.submit(rollouts):
            pass
        return len(rollouts) / (time.perf_counter() - began_s)


async def _bare_workers(rollouts: list[Rollout]) -> float:
    """Does the least that any agent must do: workers take a record, call the function, and keep the result."""
    queue = [(i, rollout) for i, rollout in enumerate(rollouts)]
    heapq.heapify(queue)
    results: list[float] = []

    async def work() -> None:
        while queue:
            _, rollout = heapq.heappop(queue)
            results.append(await _noop(rollout.response))
            await asyncio.sleep(0)

    began_s = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(256):
            tasks.create_task(work())
    return len(results) / (time.perf_counter() - began_s)


def _thread_pool(rollouts: list[Rollout]) -> float:
    with ThreadPoolExecutor(256) as pool:
        began_s = time.perf_counter()
        count = sum(1 for _ in pool.map(_plain_noop, [rollout.response for rollout in rollouts]))
        return count / (time.perf_counter() - began_s)


# -- 20,000 calls in flight ------------------------------------------------------------------------------------------


def many_in_flight(count: int = 20_000) -> Iterator[BenchmarkRow]:
    extra_mb, lag_s, in_flight = asyncio.run(_many_in_flight(count))
    yield BenchmarkRow(
        name="calls in flight at once", value=in_flight, unit="calls", yardstick=count, yardstick_name="submitted"
    )
    yield BenchmarkRow(name=f"{count} calls in flight: extra memory", value=extra_mb, unit="MB", bar="<= 200")
    yield BenchmarkRow(name=f"{count} calls in flight: loop lag p99", value=lag_s * 1000, unit="ms", bar="<= 50")


async def _many_in_flight(count: int) -> tuple[float, float, int]:
    rng = random.Random(0)
    delays_s = {str(i): rng.uniform(3.0, 6.0) for i in range(count)}

    async def wait(extra_info: dict[str, Any]) -> float:
        await asyncio.sleep(delays_s[extra_info["group_uid"]])
        return 1.0

    rollouts = _groups(count, size=1)
    gc.collect()
    before_mb = _memory_mb()
    watch = _Watch()
    async with RewardAgent(wait, max_concurrency=count) as agent, asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watch.run(agent))
        await agent.submit(rollouts).all()
        watching.cancel()
    lags_s = sorted(watch.lags_s)
    return watch.peak_mb - before_mb, lags_s[int(len(lags_s) * 0.99)], watch.in_flight


class _Watch:
    """Wakes up every 5 ms and records how late it woke and how much memory the process held."""

    def __init__(self) -> None:
        self.lags_s: list[float] = []
        self.peak_mb = 0.0
        self.in_flight = 0

    async def run(self, agent: RewardAgent) -> None:
        while True:
            asked_s = time.perf_counter()
            await asyncio.sleep(0.005)
            self.lags_s.append(time.perf_counter() - asked_s - 0.005)
            self.peak_mb = max(self.peak_mb, _memory_mb())
            self.in_flight = max(self.in_flight, agent.statistics().in_flight)


def _memory_mb() -> float:
    """Returns the memory that the process holds now, or the peak so far where the system does not report it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return pages * resource.getpagesize() / 1e6


# -- a rate that the agent must learn ---------------------------------------------------------------------------------


def learnt_pace(minutes: float = 10.0) -> Iterator[BenchmarkRow]:
    """Simulates ten minutes with a service of 600 requests a minute, on the virtual clock."""
    for latency_s in (0.3, 20.0):
        for burst in (1, 60):
            service = clock.run(_drive_to_limit(burst, latency_s, minutes * 60))
            name = f"learnt pace, burst {burst}, replies after {latency_s:g} s"
            end_s = minutes * 60
            yield BenchmarkRow(
                name=f"{name}: share of the rate",
                value=service.accepted_share(60.0, end_s),
                unit="",
                yardstick=1.0,
                yardstick_name="600 requests a minute",
                bar=">= 0.90",
            )
            yield BenchmarkRow(
                name=f"{name}: answered 429",
                value=service.rejected_share(60.0, end_s),
                unit="",
                yardstick_name="after the first minute",
                bar="<= 0.02",
            )


async def _drive_to_limit(burst: int, latency_s: float, duration_s: float) -> SimulatedService:
    service = SimulatedService(rpm=600, burst=burst, latency_s=latency_s)

    async def judge(solution_str: str) -> float:
        await service.call()
        return 1.0

    async with RewardAgent(judge, max_concurrency=256) as agent:
        ticket = agent.submit(_groups(int(duration_s * 10 * 1.2), size=1))
        await asyncio.sleep(duration_s)
        ticket.cancel()
    return service
