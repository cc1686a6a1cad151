"""`kill -9` of the server and of clients: one verdict each, and nothing settled is paid for again."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
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
