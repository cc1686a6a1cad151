"""Two jobs of different kinds on one server: they share a limit fairly, and each keeps its cap."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from served import GATE, served

import rewardflow as rf
from rewardflow.serve import connect

PRICE_USD = 0.125
STARTED: list[str] = []


async def judge(solution_str: str) -> float:
    await GATE["hold"].wait()
    STARTED.append(solution_str[0])
    await asyncio.sleep(0.002)
    rf.report_usage(cost_usd=PRICE_USD)
    return 1.0


def test_a_batch_client_and_a_plain_http_client_share_a_limit_and_each_keeps_its_cap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one submits whole generations of groups, as TRL does; the other sends single requests, as slime does."""
    monkeypatch.setenv("A_TOKEN", "a" * 20)
    monkeypatch.setenv("B_TOKEN", "b" * 20)
    monkeypatch.setenv("REWARDFLOW_TOKEN", "a" * 20)
    jobs: dict[str, Any] = {
        "batch": {"token_env": "A_TOKEN", "max_cost_usd": 150 * PRICE_USD},
        "plain": {"token_env": "B_TOKEN", "max_cost_usd": 100 * PRICE_USD},
    }
    STARTED.clear()

    async def main() -> None:
        async with served(judge, serve={"jobs": jobs}, max_concurrency=4, call_cost_usd=PRICE_USD) as asker:
            async with connect(asker.url, run="batch") as agent, asyncio.TaskGroup() as tasks:
                generation = [
                    rf.Rollout(group_id=str(i // 8), index=i % 8, group_size=8, response=f"a{i}") for i in range(200)
                ]
                asking = [
                    tasks.create_task(asker.post("/slime", {"prompt": "", "response": f"b{i}"}, token="b" * 20))
                    for i in range(200)
                ]
                ticket = agent.submit(generation)
                waiting = 0
                while waiting < 400 - 4:  # all of both are in the queue, or in one of the four slots
                    _, status = await asker.get("/v1/status", token="b" * 20)
                    waiting = status["calls_waiting"]
                GATE["hold"].set()
                groups = await ticket.all()
                statuses = [(await answer)[0] for answer in asking]
            kinds = [reward.kind for group in groups for reward in group.rewards]
            assert (kinds.count(None), kinds.count("budget")) == (150, 50)
            assert (statuses.count(200), statuses.count(402)) == (100, 100)
            for token, cap_usd in (("a" * 20, 150 * PRICE_USD), ("b" * 20, 100 * PRICE_USD)):
                _, spending = await asker.get("/v1/spending", token=token)
                assert spending["spent_usd"] == spending["cap_usd"] == cap_usd

    asyncio.run(main())
    while_both_have_work = STARTED[4:104]
    assert 40 <= while_both_have_work.count("a") <= 60
