"""The outage clock runs only while somebody waits in vain."""

from __future__ import annotations

import asyncio

import pytest

import rewardflow as rf
from rewardflow import clock
from rewardflow.reward.calls.outage import OutageClock


def clock_of(loop: asyncio.AbstractEventLoop, waiting: list[bool], halted: list[rf.ServiceOutage]) -> OutageClock:
    return OutageClock(
        "judge",
        loop,
        600.0,
        sink=None,
        is_anyone_waiting=lambda: waiting[0],
        give_up_jobs=lambda: False,
        halt=lambda error: halted.append(error),
    )


def test_it_gives_up_once_after_the_set_time_and_says_why() -> None:
    async def main() -> list[rf.ServiceOutage]:
        halted: list[rf.ServiceOutage] = []
        outage = clock_of(asyncio.get_running_loop(), [True], halted)
        outage.begin("503")
        await asyncio.sleep(300)
        outage.begin("504")
        await asyncio.sleep(299)
        assert not halted
        await asyncio.sleep(2)
        return halted

    (error,) = clock.run(main())
    assert "600 s" in str(error)
    assert "504" in str(error)


def test_it_is_reset_by_the_end_and_forgets_when_nobody_waits() -> None:
    async def main() -> None:
        halted: list[rf.ServiceOutage] = []
        waiting = [True]
        outage = clock_of(asyncio.get_running_loop(), waiting, halted)
        outage.begin("503")
        await asyncio.sleep(599)
        outage.end()
        outage.begin("503")
        await asyncio.sleep(599)
        waiting[0] = False
        await asyncio.sleep(1000)
        assert not halted
        assert not outage.is_running

    clock.run(main())


def test_it_does_not_say_that_the_service_is_back_when_the_waiting_calls_were_cancelled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def down(solution_str: str) -> float:
        raise rf.ServiceError("nobody at home")

    async def main() -> None:
        async with rf.RewardAgent(down) as agent:
            ticket = agent.submit(rf.Rollout(group_id=str(i), response="") for i in range(60))
            await asyncio.sleep(60)
            ticket.cancel()

    clock.run(main())
    assert "outage began" in caplog.text
    assert "outage over" not in caplog.text
    assert "no call waits for the service any more" in caplog.text


def test_it_says_that_the_outage_is_over_when_calls_go_on(caplog: pytest.LogCaptureFixture) -> None:
    is_down = True

    async def judge(solution_str: str) -> float:
        if is_down:
            raise rf.ServiceError("nobody at home")
        return 1.0

    async def main() -> None:
        nonlocal is_down
        async with rf.RewardAgent(judge) as agent:
            ticket = agent.submit(rf.Rollout(group_id=str(i), response="") for i in range(60))
            await asyncio.sleep(60)
            is_down = False
            await ticket.all()

    clock.run(main())
    assert "outage over" in caplog.text


def test_an_idle_agent_is_not_halted_by_an_outage_that_nobody_waits_out() -> None:
    is_down = True

    async def judge(solution_str: str) -> float:
        await asyncio.sleep(1)
        if is_down:
            raise rf.ServiceError("down")
        return 1.0

    async def main() -> list[rf.ScoredGroup]:
        nonlocal is_down
        rollouts = [rf.Rollout(group_id=str(i), response="") for i in range(60)]
        async with rf.RewardAgent(judge, max_concurrency=30, verdict_timeout_s=10, outage_give_up_s=600) as agent:
            failed = await agent.submit(rollouts).all()
            assert all(group.num_failed for group in failed)
            is_down = False
            await asyncio.sleep(2000)
            return await agent.submit(rf.Rollout(group_id="later", response="")).all()

    (group,) = clock.run(main())
    assert group.rewards[0].value == 1.0


def test_being_told_to_wait_longer_than_the_give_up_time_is_an_outage() -> None:
    async def judge(solution_str: str) -> float:
        raise rf.RateLimited("quota used up", retry_after_s=86_400)

    async def main() -> float:
        async with rf.RewardAgent(judge, outage_give_up_s=600) as agent:
            with pytest.raises(rf.ServiceOutage, match="quota used up"):
                await agent.submit(rf.Rollout(group_id="g", response="")).all()
            return asyncio.get_running_loop().time()

    assert clock.run(main()) < 700


def test_an_outage_without_a_failed_call_names_what_the_next_call_waits_for() -> None:
    async def judge(solution_str: str) -> float:
        rf.report_usage(tokens=500_000)
        return 1.0

    async def main() -> None:
        async with rf.RewardAgent(judge, max_concurrency=1, tpm=1000, outage_give_up_s=600) as agent:
            with pytest.raises(
                rf.ServiceOutage, match=r"1000 tokens a minute allow .* a call that used 500,000 tokens"
            ):
                await agent.submit(rf.Rollout(group_id=str(i), response="") for i in range(3)).all()

    clock.run(main())
