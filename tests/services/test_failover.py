"""One judge at two addresses, one of which goes down and comes back while answers are being scored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import rewardflow as rf
from rewardflow.mock_judge import MockJudge, MockJudgeSettings
from rewardflow.services import LLMJudge

WINDOW = 20
IN_FLIGHT = 16


@dataclass
class Service:
    """Two judges behind one agent, and rollouts for them."""

    first: MockJudge
    second: MockJudge
    agent: rf.RewardAgent
    step: int = 0

    def submit(self, count: int) -> rf.Ticket:
        self.step += 1
        return self.agent.submit(
            [rf.Rollout(group_id=str(i), step=self.step, response=f"{self.step}-{i}") for i in range(count)]
        )

    def answered(self) -> tuple[int, int]:
        first, second = (judge.statistics().outcomes.get("answered", 0) for judge in (self.first, self.second))
        return first, second


@asynccontextmanager
async def two_judges() -> AsyncIterator[Service]:
    settings = MockJudgeSettings(latency="uniform:5,15", scale=0.001)
    async with MockJudge(settings) as first, MockJudge(settings) as second:
        judge = LLMJudge(model="m", base_urls=[first.base_url, second.base_url])
        async with rf.RewardAgent(
            judge, max_concurrency=IN_FLIGHT, backoff_s=0.01, outage_window=WINDOW, outage_share=0.8
        ) as agent:
            yield Service(first, second, agent)


def all_scored(groups: list[rf.ScoredGroup]) -> bool:
    return all(reward.is_scored for group in groups for reward in group.rewards)


def test_both_addresses_are_used() -> None:
    async def main() -> None:
        async with two_judges() as service:
            assert all_scored(await service.submit(200).all())
            first, second = service.answered()
            assert first + second == 200
            assert min(first, second) > 50

    asyncio.run(main())


def test_a_judge_that_goes_down_while_it_is_asked_costs_no_verdict_and_is_soon_left_alone() -> None:
    async def main() -> None:
        async with two_judges() as service:
            ticket = service.submit(400)
            groups = list(await ticket.take(100))
            service.first.go_down()
            groups += await ticket.take(300)
            assert len(groups) == 400
            assert all_scored(groups)
            num_refused = service.first.statistics().outcomes["down"]
            assert WINDOW * 0.8 <= num_refused <= WINDOW + IN_FLIGHT
            broken, sound = service.agent.statistics().accounts[0].governors.endpoints
            assert broken.breaker.state != "closed"
            assert sound.breaker.state == "closed"

    asyncio.run(main())


def test_a_judge_that_comes_back_is_used_again_and_nothing_was_lost_meanwhile() -> None:
    async def main() -> None:
        async with two_judges() as service:
            service.first.go_down()
            assert all_scored(await service.submit(200).all())
            assert service.answered() == (0, 200)
            service.first.come_up()
            while service.answered()[0] == 0:  # a probe finds out, about a second after the judge was given up
                assert all_scored(await service.submit(50).all())
            before = service.answered()
            assert all_scored(await service.submit(200).all())
            gained = [after - earlier for after, earlier in zip(service.answered(), before, strict=True)]
            assert sum(gained) == 200
            assert min(gained) > 50

    asyncio.run(main())
