"""`rewardflow bench serve`: measures verdicts through HTTP, calls in flight, memory, and a slow judge behind it.

The server is a process of its own, as users run it; this process is the client, and its CPU counts too: the figures are
those of one machine that runs both.

Always true: every verdict that is counted was checked against its rollout; the server's memory is its resident set.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewardflow.bench.benchmark_row import BenchmarkRow
from rewardflow.bench.bounds import list_schedule
from rewardflow.clock import chance
from rewardflow.types import Rollout

if TYPE_CHECKING:
    import aiohttp  # slow to import: loaded when something is measured

_BATCH = 1000
_BATCHES_AT_ONCE = 4
_IN_FLIGHT = 10_000
_HELD_S = 8.0
_SLOTS = 256
_SCALE = 0.05  # of the judge's 1 to 40 seconds
_PAGE_KB = 4


async def no_op(solution_str: str) -> float:
    return float(len(solution_str))


async def delayed(solution_str: str) -> float:
    """Takes as many seconds as the response says."""
    await asyncio.sleep(float(solution_str))
    return 1.0


def run_serve_benchmarks(*, quick: bool = False) -> Iterator[BenchmarkRow]:
    """Yields rows as they are measured. `quick` makes a twentieth of the verdicts."""
    num_verdicts = 10_000 if quick else 200_000
    with _server("no_op", max_concurrency=256) as (url, pid):
        yield from asyncio.run(_throughput(url, pid, num_verdicts))
        yield asyncio.run(_client_throughput(url, num_verdicts // 2))
    with _server("delayed", max_concurrency=_IN_FLIGHT) as (url, _):
        yield asyncio.run(_in_flight(url))
    with _server("delayed", max_concurrency=_SLOTS) as (url, _):
        yield asyncio.run(_slow_judge(url, 1024 if quick else 5120))


@contextlib.contextmanager
def _server(reward: str, *, max_concurrency: int) -> Iterator[tuple[str, int]]:
    command = ["serve", f"{__name__}:{reward}", "--port", "0", "--json", "--max-concurrency", str(max_concurrency)]
    with subprocess.Popen(
        [sys.executable, "-m", "rewardflow", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"], process.pid
        finally:
            process.terminate()


async def _throughput(url: str, pid: int, count: int) -> list[BenchmarkRow]:
    """Sends batches to `/v1/score`; compares the server's memory at the end with that after three fifths of them.

    Until then it fills its store of settled verdicts, which is limited in bytes.
    """
    import aiohttp

    firsts = list(range(0, count, _BATCH))
    early = firsts[: 3 * len(firsts) // 5]
    async with aiohttp.ClientSession() as session:
        began_s, began_cpu_s = time.perf_counter(), _cpu_s(pid)
        await _send_batches(session, url, early)
        early_mb = _resident_mb(pid)
        await _send_batches(session, url, firsts[len(early) :])
        took_s, cpu_s = time.perf_counter() - began_s, _cpu_s(pid) - began_cpu_s
    return [
        BenchmarkRow(name="verdicts through HTTP batches", value=count / took_s, unit="verdicts/s", bar=">= 5,000"),
        BenchmarkRow(name="CPU of the server", value=1e6 * cpu_s / count, unit="us/verdict", bar="<= 200"),
        BenchmarkRow(
            name="server memory at the end",
            value=_resident_mb(pid),
            unit="MB",
            yardstick=early_mb,
            yardstick_name=f"after {len(early) * _BATCH:,} verdicts",
            bar="<= 1.1",
            bar_on="ratio",
        ),
    ]


async def _send_batches(session: aiohttp.ClientSession, url: str, firsts: Sequence[int]) -> None:
    waiting = list(reversed(firsts))

    async def send() -> None:
        while waiting:
            first = waiting.pop()
            rollouts: list[dict[str, Any]] = [
                {
                    "group_id": f"g{number // 8}",
                    "index": number % 8,
                    "group_size": 8,
                    "response": "x" * (1 + number % 50),
                }
                for number in range(first, first + _BATCH)
            ]
            async with session.post(f"{url}/v1/score", json={"rollouts": rollouts, "wait_s": 60}) as answer:
                verdicts = (await answer.json())["verdicts"]
            if [one["value"] for one in verdicts] != [float(len(one["response"])) for one in rollouts]:
                raise AssertionError("a verdict is missing or belongs to another rollout")

    async with asyncio.TaskGroup() as tasks:
        for _ in range(_BATCHES_AT_ONCE):
            tasks.create_task(send())


async def _client_throughput(url: str, count: int) -> BenchmarkRow:
    from rewardflow.serve import connect

    rollouts = [
        Rollout(group_id=f"g{i // 8}", index=i % 8, group_size=8, response="x" * (1 + i % 50)) for i in range(count)
    ]
    async with connect(url, run="client") as agent:
        began_s = time.perf_counter()
        groups = await agent.submit(rollouts).all()
        took_s = time.perf_counter() - began_s
    if sum(len(group.rewards) for group in groups) != count:
        raise AssertionError("a verdict is missing")
    return BenchmarkRow(name="verdicts through the Python client", value=count / took_s, unit="verdicts/s")


async def _in_flight(url: str) -> BenchmarkRow:
    """Sends calls that stay out for seconds, and asks the server how many are out."""
    import aiohttp

    from rewardflow.serve import connect

    async with connect(url, run="client") as agent, aiohttp.ClientSession() as session:
        ticket = agent.submit([Rollout(group_id=str(i), response=f"{_HELD_S}") for i in range(_IN_FLIGHT)])
        most = 0
        while ticket.num_pending and most < _IN_FLIGHT:
            async with session.get(f"{url}/v1/status") as answer:
                most = max(most, (await answer.json())["calls_in_flight"])
            await asyncio.sleep(0.1)
        if len(await ticket.all()) != _IN_FLIGHT:
            raise AssertionError("a verdict is missing")
    return BenchmarkRow(name="calls in flight at a time", value=most, unit="calls", bar=f">= {_IN_FLIGHT:,}")


async def _slow_judge(url: str, count: int) -> BenchmarkRow:
    """Runs the original's judge, 1 to 40 s a call and 256 at a time, on a scaled clock."""
    from rewardflow.serve import connect

    draw = chance(asyncio.get_running_loop())
    delays_s = [draw.uniform(1.0, 40.0) * _SCALE for _ in range(count)]
    rollouts = [
        Rollout(group_id=f"g{i // 8}", index=i % 8, group_size=8, position=i // 8, response=f"{delay_s}")
        for i, delay_s in enumerate(delays_s)
    ]
    async with connect(url, run="client") as agent:
        began_s = time.perf_counter()
        await agent.submit(rollouts).all()
        took_s = time.perf_counter() - began_s
    return BenchmarkRow(
        name=f"{count:,} calls of 1 to 40 s, scaled by {_SCALE:g}",
        value=took_s,
        unit="s",
        yardstick=max(list_schedule(delays_s, _SLOTS)),
        yardstick_name=f"bound of {_SLOTS} slots",
        bar="<= 1.10",
        bar_on="ratio",
    )


def _cpu_s(pid: int) -> float:
    """Returns the CPU time of a process, which a busy machine does not change much."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * _PAGE_KB / 1024
