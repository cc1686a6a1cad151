"""`kill -9` of the server and of clients: one verdict each, and nothing settled is paid for again."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections import Counter
from pathlib import Path

import aiohttp
from serving_process import ServingProcess

import rewardflow as rf
from rewardflow.serve import connect

COUNT = 400


def rollouts() -> list[rf.Rollout]:
    return [rf.Rollout(group_id=f"g{i // 4}", index=i % 4, group_size=4, response=f"r{i}") for i in range(COUNT)]


def test_a_server_that_is_killed_again_and_again_gives_one_verdict_each_and_pays_for_nothing_settled(
    tmp_path: Path,
) -> None:
    async def main(server: ServingProcess) -> list[rf.ScoredGroup]:
        async with connect(server.url, run="a", give_up_s=120) as agent:
            ticket = agent.submit(rollouts())
            groups = [await anext(ticket) for _ in range(10)]
            for _ in range(3):
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.__enter__)
                groups.append(await anext(ticket))
            return [*groups, *await ticket.all()]

    with ServingProcess(tmp_path, options=("--max-concurrency", "8")) as server:
        groups = asyncio.run(main(server))
        assert Counter(group.group_id for group in groups) == Counter(f"g{i}" for i in range(COUNT // 4))
        assert all(
            reward.value == len(one.response) for g in groups for one, reward in zip(g.rollouts, g.rewards, strict=True)
        )
        calls = Counter(server.calls())
        assert set(calls) == {one.response for one in rollouts()}
        assert sum(calls.values()) - COUNT <= 3 * 8  # at most what was in flight at each kill

        async def again() -> None:
            async with connect(server.url, run="a") as agent:
                assert all(r.cached for group in await agent.submit(rollouts()).all() for r in group.rewards)

        asyncio.run(again())
        assert Counter(server.calls()) == calls


def _die_in_the_middle(url: str) -> None:
    async def main() -> None:
        async with connect(url, run="a") as agent:
            ticket = agent.submit(rollouts())
            await ticket.take(20)
            os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(main())


def test_a_client_that_is_killed_is_replaced_by_one_that_pays_for_nothing_settled(tmp_path: Path) -> None:
    with ServingProcess(tmp_path, options=("--max-concurrency", "8")) as server:
        for _ in range(2):
            child = multiprocessing.get_context("spawn").Process(target=_die_in_the_middle, args=(server.url,))
            child.start()
            child.join()
            assert child.exitcode == -signal.SIGKILL

        async def main() -> None:
            async with connect(server.url, run="a") as agent:
                groups = await agent.submit(rollouts()).all()
                assert len(groups) == COUNT // 4

        asyncio.run(main())
        assert Counter(server.calls()) == Counter(one.response for one in rollouts())


def test_a_trainer_that_asks_again_after_a_kill_gets_what_was_settled_without_a_call(tmp_path: Path) -> None:
    async def ask(url: str) -> list[float]:
        async with aiohttp.ClientSession() as session:
            values = []
            for i in range(20):
                async with session.post(f"{url}/slime", json={"prompt": "p", "response": f"r{i}"}) as answer:
                    values.append(await answer.json())
            return values

    with ServingProcess(tmp_path) as server:
        first = asyncio.run(ask(server.url))
        server.kill()
        server.__enter__()
        assert asyncio.run(ask(server.url)) == first
        assert len(server.calls()) == 20


SILENT = """
import asyncio, os

async def judge(solution_str):
    with open(os.environ["CALLS_FILE"], "ab", buffering=0) as calls:
        calls.write(f"{solution_str}\\n".encode())
    await asyncio.sleep(0.0 if os.path.exists(os.environ["CALLS_FILE"] + ".open") else 1000.0)
    return 1.0
"""


def test_calls_in_flight_at_a_kill_count_against_the_cap_of_their_job(tmp_path: Path) -> None:
    """The judge may have charged for three, so the job may make 13 of its 16 calls; 12, as money is set aside ahead."""
    tokens = {"A_TOKEN": "a" * 20, "B_TOKEN": "b" * 20}
    serve = "{jobs: {a: {token_env: A_TOKEN, max_cost_usd: 4.0}, b: {token_env: B_TOKEN, max_cost_usd: 4.0}}}"

    async def ask(url: str, token: str, *, count: int, wait_s: float) -> Counter[str]:
        rollouts = [{"group_id": f"{token[0]}{i}", "response": f"{token[0]}{i}"} for i in range(count)]
        headers = {"Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession() as session:
            body = {"rollouts": rollouts, "wait_s": wait_s}
            async with session.post(f"{url}/v1/score", json=body, headers=headers) as answer:
                verdicts = (await answer.json())["verdicts"]
        return Counter(verdict["kind"] or "scored" for verdict in verdicts)

    options = ("--call-cost-usd", "0.25", "--timeout-s", "2000")
    with ServingProcess(tmp_path, judge=SILENT, serve=serve, env=tokens, options=options) as server:
        asyncio.run(ask(server.url, "a" * 20, count=3, wait_s=0.0))
        while len(server.calls()) < 3:  # in flight, and never answered
            time.sleep(0.01)
        server.kill()
        (tmp_path / "calls.open").touch()
        server.__enter__()
        killed = asyncio.run(ask(server.url, "a" * 20, count=20, wait_s=60.0))
        assert killed in ({"scored": 13, "budget": 7}, {"scored": 12, "budget": 8})
        assert asyncio.run(ask(server.url, "b" * 20, count=20, wait_s=60.0)) == {"scored": 16, "budget": 4}
