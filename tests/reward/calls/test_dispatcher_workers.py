"""Calls in threads and processes: calls that hang, and what they report."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rollouts import numbered
from scoring import score

import rewardflow as rf


def test_a_timed_out_thread_frees_its_slot_and_is_counted_and_replaced() -> None:
    release = threading.Event()

    def reward(solution_str: str) -> float:
        if int(solution_str) < 3:
            release.wait(30)
        return 1.0

    async def main() -> None:
        async with rf.RewardAgent(reward, max_concurrency=1, timeout_s=0.1, max_attempts=1) as agent:
            groups = await agent.submit(numbered(6)).all()
            assert [one.rewards[0].kind for one in groups] == ["timeout"] * 3 + [None] * 3
            (workers,) = agent.statistics().workers.values()
            assert (workers.abandoned, workers.replaced) == (3, 3)
            assert agent.statistics().in_flight == 0

    try:
        asyncio.run(main())
    finally:
        release.set()


def test_stuck_threads_are_replaced_up_to_the_cap_and_then_the_agent_gives_up_with_the_cause() -> None:
    release = threading.Event()

    def reward(solution_str: str) -> float:
        release.wait(30)
        return 1.0

    async def main() -> None:
        # Real time, because threads hang; on a busy machine new threads need part of this second to start.
        options: dict[str, Any] = {"max_abandoned": 2, "outage_give_up_s": 1.0}
        with pytest.raises(rf.ServiceOutage) as caught:
            async with rf.RewardAgent(reward, max_concurrency=2, timeout_s=0.05, max_attempts=1, **options) as agent:
                await agent.submit(numbered(20)).all()
        groups = {one.group_id: one for one in caught.value.groups}
        assert len(groups) == 20
        assert Counter(one.rewards[0].kind for one in groups.values()) == {"timeout": 4, "outage": 16}

    try:
        asyncio.run(main())
    finally:
        release.set()


# "hang" sleeps for real: a process that does not answer is killed by the pool, whatever its own clock says.
HANGING = """
import os, time
import rewardflow as rf

def compute_score(solution_str, extra_info):
    rf.report_usage(cost_usd=0.125, tokens=7)
    if solution_str == "hang":
        time.sleep(600)
    if solution_str == "limited" and not os.path.exists(extra_info["flag"]):
        open(extra_info["flag"], "w").close()
        raise rf.RateLimited("slow down", retry_after_s=0.01)
    if solution_str == "die":
        os._exit(3)
    return {"score": 1.0, "pid": os.getpid(), "endpoint": rf.current_call().endpoint}
"""


def test_in_processes_a_hung_call_is_killed_and_usage_and_429s_and_endpoints_come_through(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(HANGING)
    responses = ["fine", "hang", "limited", "fine", "die", "fine"]
    rollouts = [
        rf.Rollout(group_id=str(i), response=response, extra_info={"flag": str(tmp_path / "flag")})
        for i, response in enumerate(responses)
    ]

    async def main() -> None:
        options: dict[str, Any] = {"workers": "process", "max_concurrency": 1, "endpoints": ["here"], "rpm": None}
        async with rf.RewardAgent(f"{tmp_path}/judge.py", timeout_s=1, max_attempts=1, **options) as agent:
            groups = await agent.submit(rollouts).all()
            verdicts = [one.rewards[0] for one in groups]
            assert [verdict.kind for verdict in verdicts] == [None, "timeout", None, None, "service", None], verdicts
            assert verdicts[2].attempts == 2
            assert verdicts[0].extras["endpoint"] == "here"
            assert verdicts[0].extras["pid"] != verdicts[3].extras["pid"], "the hung process was killed and replaced"
            assert (verdicts[0].cost_usd, verdicts[0].tokens) == (0.125, 7)
            (workers,) = agent.statistics().workers.values()
            assert (workers.kind, workers.killed >= 1) == ("process", True)
            assert agent.statistics().ledger.spent_usd >= 3 * 0.125
            assert agent.statistics().in_flight == 0

    asyncio.run(main())


TELLING = """
import rewardflow as rf

def compute_score(solution_str):
    rf.report_headers({"X-RateLimit-Limit-Requests": "6000", "Authorization": "secret"})
    return 1.0
"""


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_limits_that_are_told_from_a_thread_or_a_process_teach_the_pace(tmp_path: Path, workers: str) -> None:
    (tmp_path / "judge.py").write_text(TELLING)

    async def main() -> None:
        options: dict[str, Any] = {"workers": workers, "max_concurrency": 1}
        async with rf.RewardAgent(f"{tmp_path}/judge.py", **options) as agent:
            (one,) = await agent.submit(numbered(1)).all()
            assert one.rewards[0].is_scored, one.rewards[0].error
            assert agent.statistics().accounts[0].governors.pace.rpm == pytest.approx(6000, rel=0.2)

    asyncio.run(main())


def test_an_async_reward_that_blocks_the_loop_is_named_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    async def this_one_blocks(solution_str: str) -> float:
        time.sleep(0.6)  # noqa: ASYNC251  real time is the subject: the agent measures how long the loop is blocked
        return 1.0

    with caplog.at_level(logging.WARNING, "rewardflow"):
        score(this_one_blocks, numbered(2))
    told = [record.getMessage() for record in caplog.records if "this_one_blocks" in record.getMessage()]
    assert len(told) == 1
    assert "block" in told[0]
