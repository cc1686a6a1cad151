"""Outages: sending stops but for probes, and goes on or gives up."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import Any

import pytest
from agent_at_work import now, with_agent
from rollouts import numbered
from scoring import score

import rewardflow as rf
from rewardflow import clock


class Service:
    """One service that is up or down."""

    def __init__(self, *, is_up: bool = True, takes_s: float = 1.0) -> None:
        self.is_up = is_up
        self.takes_s = takes_s
        self.calls: list[float] = []

    async def compute_score(self, solution_str: str) -> float:
        self.calls.append(now())
        await asyncio.sleep(self.takes_s)
        if not self.is_up:
            raise rf.ServiceError("503 from judge.example")
        return 1.0

    def num_calls(self, since_s: float, until_s: float) -> int:
        return sum(1 for at in self.calls if since_s <= at < until_s)


def test_in_an_outage_sending_stops_but_for_probes_and_goes_on_when_the_service_is_back() -> None:
    service = Service()

    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit(numbered(2000))
        await asyncio.sleep(10)
        service.is_up = False
        await asyncio.sleep(20)
        assert service.num_calls(30, 300) == 0  # nothing has happened there yet
        await asyncio.sleep(270)
        assert 2 <= service.num_calls(30, 300) <= 60, "a probe now and then, no more"
        service.is_up = True
        groups = await ticket.all()
        assert all(one.rewards[0].is_scored for one in groups), Counter(one.rewards[0].kind for one in groups)
        assert now() <= 300 + 60 + 200

    with_agent(use, service, max_concurrency=20)


def test_probes_go_out_one_at_a_time() -> None:
    out = most = 0
    is_down_since = 50.0

    async def reward(solution_str: str) -> float:
        nonlocal out, most
        out += 1
        if now() > is_down_since + 30:
            most = max(most, out)
        await asyncio.sleep(1)
        out -= 1
        if is_down_since < now() < 400:
            raise rf.ServiceError("down")
        return 1.0

    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit(numbered(2000))
        await asyncio.sleep(390)
        assert most == 1
        await ticket.all()

    with_agent(use, reward, max_concurrency=10)


def test_an_outage_that_lasts_too_long_ends_with_an_error_that_names_cause_and_remedy_and_loses_nothing() -> None:
    service = Service()

    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit(numbered(100))
        await asyncio.sleep(2.5)
        service.is_up = False
        taken: list[rf.ScoredGroup] = []

        async def consume() -> None:
            async for one in ticket:
                taken.append(one)

        with pytest.raises(rf.ServiceOutage) as caught:
            await consume()
        message = str(caught.value)
        assert "503 from judge.example" in message, "the cause"
        assert "300" in message
        assert "journal" in message, "the remedy"
        assert 300 <= now() <= 340
        stranded = caught.value.groups
        assert len({one.group_id for one in [*taken, *stranded]}) == len(taken) + len(stranded) == 100
        assert {one.rewards[0].kind for one in stranded} == {"outage"}
        num_calls = len(service.calls)
        with pytest.raises(rf.ServiceOutage):
            agent.submit(numbered(1, step=1))
        await asyncio.sleep(1000)
        assert len(service.calls) == num_calls, "nothing is sent any more"

    with_agent(use, service, max_concurrency=20, outage_give_up_s=300)


def test_everybody_who_waits_is_told_of_the_outage() -> None:
    service = Service(is_up=False)

    async def use(agent: rf.RewardAgent) -> None:
        tickets = [agent.submit(numbered(30, step=step)) for step in range(3)]
        opened = agent.open()

        async def outcome(waiting: Awaitable[Any]) -> Any:
            try:
                return await waiting
            except rf.AgentHalted as error:
                return error

        async with asyncio.TaskGroup() as tasks:
            waits = [tasks.create_task(outcome(ticket.all())) for ticket in [*tickets, opened]]
        errors = [wait.result() for wait in waits]
        assert [type(error) for error in errors] == [rf.ServiceOutage] * 4
        assert [len(error.groups) for error in errors] == [30, 30, 30, 0]

    with_agent(use, service, outage_give_up_s=100)


def test_all_gives_on_the_exception_also_the_groups_that_were_finished() -> None:
    service = Service()

    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit(numbered(60))
        await asyncio.sleep(1.5)
        service.is_up = False
        with pytest.raises(rf.ServiceOutage) as caught:
            await ticket.all()
        kinds = Counter(one.rewards[0].kind for one in caught.value.groups)
        assert kinds[None] == 20
        assert sum(kinds.values()) == 60

    with_agent(use, service, max_concurrency=20, outage_give_up_s=100)


def test_an_outage_inside_the_block_leaves_it_as_that_error() -> None:
    async def main() -> None:
        async with rf.RewardAgent(Service(is_up=False), outage_give_up_s=10) as agent:
            await agent.submit(numbered(100)).all()

    with pytest.raises(rf.ServiceOutage):
        clock.run(main())


def test_an_outage_costs_no_rollout_an_attempt() -> None:
    """Down for an hour, with the fewest attempts that allow a retry: afterwards everything is scored."""
    service = Service()

    async def use(agent: rf.RewardAgent) -> None:
        ticket = agent.submit(numbered(300))
        await asyncio.sleep(5.5)
        service.is_up = False
        await asyncio.sleep(3600)
        service.is_up = True
        kinds = Counter(one.rewards[0].kind for one in await ticket.all())
        assert kinds == {None: 300}

    with_agent(use, service, max_concurrency=8, max_attempts=3, outage_give_up_s=7200)


def test_bugs_of_the_reward_are_no_outage() -> None:
    async def reward(solution_str: str) -> float:
        await asyncio.sleep(1)
        raise KeyError("bug")

    verdicts = score(reward, numbered(500), max_concurrency=10)
    assert {verdict.kind for verdict in verdicts} == {"user_error"}


def test_a_few_failures_among_many_answers_are_no_outage() -> None:
    async def reward(solution_str: str) -> float:
        await asyncio.sleep(1)
        if int(solution_str) % 3 == 0:
            raise rf.ServiceError("now and then")
        return 1.0

    async def use(agent: rf.RewardAgent) -> None:
        await agent.submit(numbered(600)).all()
        assert agent.statistics().accounts[0].governors.endpoints[0].breaker.times_opened == 0

    with_agent(use, reward, max_concurrency=10, max_attempts=1)


def test_without_a_guard_failures_stay_failures() -> None:
    verdicts = score(Service(is_up=False), numbered(100), outage_share=None, max_attempts=1)
    assert {verdict.kind for verdict in verdicts} == {"service"}


def test_a_quota_that_answers_429_for_ever_ends_in_an_outage_instead_of_thousands_of_calls() -> None:
    calls: list[float] = []

    async def reward(solution_str: str) -> float:
        calls.append(now())
        await asyncio.sleep(0.05)
        raise rf.RateLimited("quota exceeded for this month")

    async def use(agent: rf.RewardAgent) -> None:
        with pytest.raises(rf.ServiceOutage, match="quota exceeded"):
            await agent.submit(numbered(1000)).all()
        assert now() <= 2 * 3600

    with_agent(use, reward)


class Refuses:
    """A judge that refuses some rollouts with a 429, and answers the others."""

    def __init__(self, refused: range) -> None:
        self.refused = refused

    async def compute_score(self, solution_str: str) -> float:
        await asyncio.sleep(1.0)
        if int(solution_str) in self.refused:
            raise rf.RateLimited("the request is larger than the limit of tokens a minute")
        return 1.0


def test_a_few_rollouts_that_are_refused_while_others_are_answered_end_as_refused() -> None:
    refused = range(0, 400, 40)
    verdicts = score(Refuses(refused), numbered(400), rpm=None, max_concurrency=16)
    assert {number: verdict.kind for number, verdict in enumerate(verdicts) if not verdict.is_scored} == {
        number: "rate_limited" for number in refused
    }


def test_a_quota_that_is_spent_before_the_last_few_rollouts_ends_in_an_outage() -> None:
    with pytest.raises(rf.ServiceOutage, match="limit of tokens"):
        score(Refuses(range(394, 400)), numbered(400), rpm=None, max_concurrency=6)


def test_a_rollout_that_always_hangs_does_not_keep_an_outage_alive() -> None:
    """A probe is made with another job each time, so that one bad request cannot speak for the service."""

    async def judge(solution_str: str) -> float:
        await asyncio.sleep(1000 if solution_str == "20" else 1)
        if 5 <= asyncio.get_running_loop().time() <= 15:
            raise rf.ServiceError("down")
        return 1.0

    async def main() -> list[rf.ScoredGroup]:
        rollouts = [rf.Rollout(group_id=str(i), response=str(i)) for i in range(300)]
        async with rf.RewardAgent(judge, max_concurrency=20, timeout_s=5) as agent:
            return await agent.submit(rollouts).all()

    failed = [reward.kind for group in clock.run(main()) for reward in group.rewards if not reward.is_scored]
    assert failed == ["timeout"]


def test_requests_that_are_themselves_at_fault_say_nothing_of_the_service() -> None:
    async def judge(solution_str: str) -> float:
        await asyncio.sleep(0.1)
        raise rf.ServiceError("context too long", status=400, retryable=False)

    async def main() -> rf.AgentStatistics:
        async with rf.RewardAgent(judge, max_concurrency="auto") as agent:
            await agent.submit(rf.Rollout(group_id=str(i), response="") for i in range(200)).all()
            return agent.statistics()

    (account,) = clock.run(main()).accounts
    assert account.governors.endpoints[0].breaker.times_opened == 0
    assert account.governors.concurrency.limit >= 16
