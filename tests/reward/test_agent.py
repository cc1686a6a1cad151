"""The life of an agent: opening, submitting, and closing while calls are in flight."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import math
import threading
from pathlib import Path
from typing import Any

import pytest
from agent_at_work import now
from rollouts import group
from scoring import score_groups, score_one, values
from simple_rewards import (
    AsyncGroupJudge,
    AsyncJudge,
    Logging,
    PlainJudge,
    async_number,
    plain_number,
)

import rewardflow as rf
from rewardflow import clock

# -- what reaches a call -----------------------------------------------------------------------------------------------


def test_reward_kwargs_reach_a_function_with_every_call_and_a_class_once_when_it_is_built() -> None:
    async def function(solution_str: str, bonus: float) -> float:
        return float(solution_str) + bonus

    class Judge:
        def __init__(self, bonus: float) -> None:
            self.bonus = bonus

        async def compute_score(self, solution_str: str) -> float:
            return float(solution_str) + self.bonus

    assert score_one(function, "1", reward_kwargs={"bonus": 10.0}).value == 11.0
    assert score_one(Judge, "1", reward_kwargs={"bonus": 10.0}).value == 11.0
    parts = [rf.Weighted(Judge, name=name, reward_kwargs={"bonus": bonus}) for name, bonus in (("a", 1.0), ("b", 2.0))]
    assert dict(score_one(parts, "1").components) == {"a": 2.0, "b": 3.0}


def test_context_variables_of_the_submitter_reach_the_call_and_what_it_sets_stays_inside() -> None:
    tenant = contextvars.ContextVar("tenant", default="nobody")
    seen: list[str] = []

    async def reward(solution_str: str) -> float:
        seen.append(tenant.get())
        tenant.set("somebody else")
        await asyncio.sleep(1)
        return 1.0

    def plain_reward(solution_str: str) -> float:
        seen.append(tenant.get())
        return 1.0

    async def main(reward: Any) -> None:
        async with rf.RewardAgent(reward, max_concurrency=1) as agent:
            tenant.set("me")
            ticket = agent.submit(group("g", "1", "2"))
            tenant.set("later")
            await ticket.all()
            assert tenant.get() == "later"

    clock.run(main(reward))
    clock.run(main(plain_reward))
    assert seen == ["me"] * 4


# -- submitting --------------------------------------------------------------------------------------------------------


def test_submit_returns_at_once_and_calls_start_before_the_whole_batch_is_there() -> None:
    started: list[tuple[str, float]] = []

    async def reward(solution_str: str) -> float:
        started.append((solution_str, now()))
        await asyncio.sleep(100)
        return 1.0

    async def main() -> None:
        async with rf.RewardAgent(reward) as agent:
            with agent.open() as ticket:
                for index in range(4):
                    ticket.submit(rf.Rollout(group_id="g", index=index, group_size=4, response=str(index)))
                    await asyncio.sleep(10)
            (one,) = await ticket.all()
            assert now() == 130.0
            assert one.is_complete

    clock.run(main())
    assert started == [("0", 0.0), ("1", 10.0), ("2", 20.0), ("3", 30.0)]


def test_rollouts_can_be_submitted_from_several_threads() -> None:
    async def main() -> None:
        async with rf.RewardAgent(plain_number, max_concurrency=8) as agent:
            tickets: list[rf.Ticket] = []

            def produce(number: int) -> None:
                for i in range(20):
                    tickets.append(agent.submit(group(f"{number}-{i}", str(i), str(i + 1))))

            threads = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                await asyncio.to_thread(thread.join)
            groups = [one for ticket in tickets for one in await ticket.all()]
            assert len({one.group_id for one in groups}) == len(groups) == 80

    asyncio.run(main())


def test_an_empty_batch_is_complete_at_once() -> None:
    assert score_groups(async_number, []) == []


def test_an_agent_is_entered_once_and_takes_nothing_before_or_after() -> None:
    async def main() -> None:
        agent = rf.RewardAgent(async_number)
        with pytest.raises(rf.AgentClosed):
            agent.submit(group("g", "1"))
        async with agent:
            pass
        with pytest.raises(rf.AgentClosed):
            agent.submit(group("g", "1"))
        with pytest.raises(rf.AgentClosed):
            await agent.__aenter__()

    clock.run(main())


# -- closing the reward ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_built", [True, False])
def test_the_agent_closes_its_reward_once_after_the_last_call_has_ended(is_built: bool) -> None:
    happened: list[str] = []

    class Judge:
        async def compute_score(self, solution_str: str) -> float:
            try:
                await asyncio.sleep(1000)
            finally:
                happened.append("call ended")
            return 1.0

        def close(self) -> None:
            happened.append("close")

    async def main() -> None:
        async with rf.RewardAgent(Judge if is_built else Judge()) as agent:
            agent.submit(group("a", "1"))
            await asyncio.sleep(1)
            assert happened == []

    clock.run(main())
    assert happened == ["call ended", "close"]


def test_aclose_is_awaited_and_preferred_to_close() -> None:
    happened: list[str] = []

    class Judge(PlainJudge):
        def close(self) -> None:
            happened.append("close")

        async def aclose(self) -> None:
            await asyncio.sleep(3)
            happened.append("aclose")

    score_groups(Judge, group("a", "1"))
    assert happened == ["aclose"]


def test_a_close_that_raises_is_named_in_the_log_and_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Judge(PlainJudge):
        async def aclose(self) -> None:
            raise RuntimeError("session already gone")

    with caplog.at_level(logging.ERROR, "rewardflow"):
        assert values(score_groups(Judge, group("a", "1"))) == {"a": [1.0]}
    assert "session already gone" in caplog.text


def test_a_close_that_hangs_ends_in_bounded_time() -> None:
    class Judge(AsyncJudge):
        async def aclose(self) -> None:
            await asyncio.sleep(math.inf)

    async def main() -> None:
        async with rf.RewardAgent(Judge, close_timeout_s=4) as agent:
            await agent.submit(group("a", "1")).all()
        assert now() <= 1 + 4 + 1

    clock.run(main())


def test_the_reward_is_closed_also_when_the_block_raises() -> None:
    judge = Logging()

    async def main() -> None:
        async with rf.RewardAgent(judge) as agent:
            agent.submit(group("a", "5"))
            await asyncio.sleep(1)
            raise KeyError("in the block")

    with pytest.raises(KeyError, match="in the block"):
        clock.run(main())
    assert judge.num_closed == 1


# -- closing while calls are in flight ---------------------------------------------------------------------------------


def test_closing_cancels_what_is_out_and_every_rollout_still_gets_its_one_verdict() -> None:
    ended: list[str] = []

    async def reward(solution_str: str) -> float:
        try:
            await asyncio.sleep(float(solution_str))
        finally:
            ended.append(solution_str)
        return float(solution_str)

    async def main() -> None:
        async with rf.RewardAgent(reward, max_concurrency=2) as agent:
            ticket = agent.submit([*group("a", "1", "1"), *group("b", "1", "500"), *group("c", "500")])
            await asyncio.sleep(10)
        assert now() <= 10 + 10
        groups = await ticket.all()
        assert values(groups) == {"a": [1.0, 1.0], "b": [1.0, None], "c": [None]}
        assert {reward.kind for one in groups for reward in one.rewards} == {None, "cancelled"}

    clock.run(main())
    assert sorted(ended) == ["1", "1", "1", "500", "500"]


@pytest.mark.parametrize("num_turns", range(6))
def test_closing_right_after_submit_starts_no_call_that_nobody_waits_for(num_turns: int) -> None:
    """However few turns of the loop lie between: what was started is cancelled, what was not is never sent."""
    started: list[str] = []
    ended: list[float] = []

    async def reward(solution_str: str) -> float:
        started.append(solution_str)
        try:
            await asyncio.sleep(50)
        finally:
            ended.append(now())
        return 1.0

    async def main() -> None:
        async with rf.RewardAgent(reward, close_timeout_s=10) as agent:
            ticket = agent.submit(group("g", "1", "2"))
            for _ in range(num_turns):
                await asyncio.sleep(0)
        assert now() == 0.0, "closing waited for a call that nobody wants"
        (one,) = await ticket.all()
        assert [reward.kind for reward in one.rewards] == ["cancelled", "cancelled"]

    clock.run(main())
    assert ended == [0.0] * len(started)


def test_a_plain_reward_that_hangs_does_not_keep_the_agent_from_closing() -> None:
    release = threading.Event()
    entered = threading.Event()

    def reward(solution_str: str) -> float:
        entered.set()
        release.wait(30)
        return 1.0

    async def main() -> None:
        async with rf.RewardAgent(reward, max_concurrency=2, close_timeout_s=2) as agent:
            ticket = agent.submit(group("g", "1"))
            await asyncio.to_thread(entered.wait, 10)
        (one,) = await ticket.all()
        assert one.rewards[0].kind == "cancelled"

    try:
        asyncio.run(main())
    finally:
        release.set()


@pytest.mark.parametrize("close_timeout_s", [0.5, 10.0])
def test_a_reward_that_swallows_its_cancellation_does_not_keep_the_agent_from_closing(close_timeout_s: float) -> None:
    async def reward(solution_str: str) -> float:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)

    async def main() -> None:
        async with rf.RewardAgent(reward, close_timeout_s=close_timeout_s) as agent:
            ticket = agent.submit(group("g", "1"))
            await asyncio.sleep(1)
        assert now() <= 1 + 2 * close_timeout_s + 2
        assert (await ticket.all())[0].rewards[0].kind == "cancelled"

    clock.run(main())


def test_cancelling_the_block_cancels_the_calls_and_stays_a_cancellation() -> None:
    ended: list[float] = []

    async def reward(solution_str: str) -> float:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(now())
        return 1.0

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5), rf.RewardAgent(reward) as agent:
                await agent.submit(group("g", "1", "2")).all()
        assert ended == [5.0, 5.0]

    clock.run(main())


def test_what_a_cancelled_call_had_already_paid_is_in_the_journal_after_closing(tmp_path: Path) -> None:
    """`Closing the agent while calls are in flight cancels them, journals what was paid`."""

    async def reward(solution_str: str) -> float:
        rf.report_usage(cost_usd=0.25)
        await asyncio.sleep(1000)
        return 1.0

    async def main() -> None:
        async with rf.RewardAgent(reward, journal=tmp_path / "j.db") as agent:
            agent.submit(group("g", "1", "2"))
            await asyncio.sleep(1)
        async with rf.RewardAgent(reward, journal=tmp_path / "j.db") as agent:
            assert agent.statistics().ledger.spent_usd == pytest.approx(0.5)

    clock.run(main())


_paid_calls: list[str] = []


async def paid(solution_str: str) -> dict[str, Any]:
    _paid_calls.append(solution_str)
    await asyncio.sleep(float(solution_str))
    rf.report_usage(cost_usd=0.5)
    if solution_str == "2":
        raise ValueError("two")
    return {"score": float(solution_str), "explanation": "because", "tag": "x"}


def test_what_was_delivered_is_not_called_again_by_the_next_agent_on_the_same_journal(tmp_path: Path) -> None:
    batch = [*group("a", "1", "2"), *group("b", "500")]

    async def main() -> None:
        async with rf.RewardAgent(paid, journal=tmp_path / "j.db", timeout_s=None) as agent:
            ticket = agent.submit(batch)
            (first,) = await ticket.take(1)
        async with rf.RewardAgent(paid, journal=tmp_path / "j.db", timeout_s=None) as agent:
            again = await agent.submit(batch).all()
            assert agent.statistics().verdicts.cached == 2
        assert values(again) == {"a": [1.0, None], "b": [500.0]}
        assert again[0].rewards[1].kind == first.rewards[1].kind == "user_error"
        assert again[0].rewards[0].explanation == "because"
        assert again[0].rewards[0].extras["tag"] == "x"

    _paid_calls.clear()
    clock.run(main())
    assert _paid_calls == ["1", "2", "500", "500"]


def test_closing_gives_what_was_submitted_of_a_torn_group_its_verdict() -> None:
    async def main() -> None:
        async with rf.RewardAgent(async_number) as agent:
            ticket = agent.submit(group("g", "1", "2")[0])
            await asyncio.sleep(5)
        (one,) = await ticket.all()
        assert [reward.value for reward in one.rewards] == [1.0]
        assert not one.is_complete

    clock.run(main())


def test_closing_gives_a_group_that_was_never_judged_failed_verdicts() -> None:
    judge = AsyncGroupJudge()

    async def main() -> None:
        async with rf.RewardAgent(judge) as agent:
            ticket = agent.submit(group("g", "1", "2", "3")[:2])
            await asyncio.sleep(5)
        (one,) = await ticket.all()
        assert [reward.kind for reward in one.rewards] == ["cancelled", "cancelled"]

    clock.run(main())


def test_a_group_whose_post_processing_is_cut_off_by_closing_is_delivered_all_the_same() -> None:
    class Judge:
        async def compute_score(self, solution_str: str) -> float:
            return 1.0

        async def post_process_scores(self, scores: list[float]) -> list[float]:
            while True:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(1000)

    async def main() -> None:
        async with rf.RewardAgent(Judge, close_timeout_s=1) as agent:
            ticket = agent.submit(group("g", "x"))
            await asyncio.sleep(1)
        assert asyncio.get_running_loop().time() < 10
        async with asyncio.timeout(100):
            (one,) = await ticket.all()
        assert one.num_failed == 1

    clock.run(main())
