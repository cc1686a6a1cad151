"""Groups that wait for what may never come."""

from __future__ import annotations

import asyncio

from rewardflow import clock
from rewardflow.reward.groups.incomplete_groups import GroupKey, IncompleteGroups


def key(number: int) -> GroupKey:
    return "run", 0, str(number)


def test_a_group_is_given_up_when_nothing_has_come_for_it_for_the_set_time() -> None:
    async def main() -> list[tuple[float, GroupKey]]:
        loop, given_up = asyncio.get_running_loop(), list[tuple[float, GroupKey]]()
        began_s = loop.time()
        groups = IncompleteGroups(loop, 10.0, lambda one: given_up.append((round(loop.time() - began_s, 6), one)))
        groups.rollout_arrived(key(0))
        groups.rollout_arrived(key(1))
        await asyncio.sleep(4)
        groups.rollout_arrived(key(0))
        groups.rollout_arrived(key(2))
        groups.rollout_arrived(key(3))
        groups.forget(key(2))
        await asyncio.sleep(100)
        groups.rollout_arrived(key(4))
        await asyncio.sleep(100)
        assert len(groups) == 0
        return given_up

    assert clock.run(main()) == [(10.0, key(1)), (14.0, key(0)), (14.0, key(3)), (114.0, key(4))]


def test_without_a_time_none_is_given_up_and_after_closing_none_either() -> None:
    async def main() -> None:
        loop, given_up = asyncio.get_running_loop(), list[GroupKey]()
        for after_s, closes in ((None, False), (5.0, True)):
            groups = IncompleteGroups(loop, after_s, given_up.append)
            groups.rollout_arrived(key(0))
            if closes:
                groups.close()
            await asyncio.sleep(1000)
        assert given_up == []

    clock.run(main())
