"""An agent that is there for its clients only: how long that is."""

from __future__ import annotations

import asyncio

import pytest

from rewardflow import clock
from rewardflow.shared_agent.ray_actor import ProcessLiveness


def test_it_is_over_when_the_last_of_those_who_came_is_gone() -> None:
    async def main() -> float:
        liveness = ProcessLiveness(first_client_s=60)
        async with asyncio.TaskGroup() as tasks:
            for come_s, stay_s in ((1, 5), (2, 500), (3, 1)):
                tasks.create_task(come(liveness, come_s, stay_s))
            await liveness.wait_until_all_gone()
            return asyncio.get_running_loop().time()

    assert clock.run(main()) == pytest.approx(502)


def test_it_is_over_where_nobody_comes_in_time() -> None:
    async def main() -> float:
        await ProcessLiveness(first_client_s=60).wait_until_all_gone()
        return asyncio.get_running_loop().time()

    assert clock.run(main()) == pytest.approx(60)


def test_who_comes_while_others_are_there_is_waited_for() -> None:
    async def main() -> float:
        liveness = ProcessLiveness(first_client_s=60)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(come(liveness, 59, 100))
            tasks.create_task(come(liveness, 158, 100))
            await liveness.wait_until_all_gone()
            return asyncio.get_running_loop().time()

    assert clock.run(main()) == pytest.approx(258)


async def come(liveness: ProcessLiveness, come_s: float, stay_s: float) -> None:
    await asyncio.sleep(come_s)
    await liveness.track(asyncio.sleep(stay_s))
