from __future__ import annotations

import asyncio

import pytest

from rewardflow import clock
from rewardflow.errors import InvalidInput, RateLimited, ServiceError
from rewardflow.reward.simulated_service import SimulatedService


async def outcomes(service: SimulatedService, num_calls: int) -> list[bool]:
    async def accepted() -> bool:
        try:
            await service.call()
        except RateLimited:
            return False
        return True

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(accepted()) for _ in range(num_calls)]
    return [task.result() for task in tasks]


def test_a_burst_is_accepted_and_the_rest_is_refused() -> None:
    async def main() -> None:
        service = SimulatedService(rpm=60, burst=3)
        assert await outcomes(service, 5) == [True, True, True, False, False]
        await asyncio.sleep(2.0)
        assert sum(await outcomes(service, 5)) == 2
        assert (service.num_accepted, service.num_rejected) == (5, 5)

    clock.run(main())


def test_replies_and_refusals_take_their_own_time() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        service = SimulatedService(rpm=1, latency_s=20.0, rejection_latency_s=0.5, retry_after_s=7.0)
        await service.call()
        assert loop.time() == 20.0
        with pytest.raises(RateLimited) as refusal:
            await service.call()
        assert loop.time() == 20.5
        assert refusal.value.retry_after_s == 7.0

    clock.run(main())


def test_above_its_capacity_calls_queue() -> None:
    async def main() -> None:
        service = SimulatedService(capacity=2, latency_s=1.0)
        assert all(await outcomes(service, 6))
        assert asyncio.get_running_loop().time() == 3.0

    clock.run(main())


def test_a_service_that_is_down_fails_and_counts_nothing() -> None:
    async def main() -> None:
        service = SimulatedService(rpm=60)
        service.is_down = True
        with pytest.raises(ServiceError):
            await service.call()
        assert service.arrivals == []

    clock.run(main())


def test_shares_are_taken_over_the_time_asked_for() -> None:
    async def main() -> None:
        service = SimulatedService(rpm=60, burst=1, latency_s=0.0, rejection_latency_s=0.0)
        await outcomes(service, 10)  # nine refused, before the time asked for
        for _ in range(10):
            await asyncio.sleep(2.0)
            await service.call()
        assert service.accepted_share(1.0, 21.0) == 0.5
        assert service.rejected_share(1.0, 21.0) == 0.0
        assert service.rejected_share(0.0, 1.0) == 0.9

    clock.run(main())


def test_a_limit_that_changes_keeps_what_was_saved_up() -> None:
    async def main() -> None:
        service = SimulatedService(rpm=60, burst=10)
        await outcomes(service, 10)
        await asyncio.sleep(3.0)
        service.rpm = 600
        assert sum(await outcomes(service, 10)) == 3

    clock.run(main())


def test_limits_must_be_positive() -> None:
    with pytest.raises(InvalidInput, match="limits must be positive"):
        SimulatedService(rpm=0)
