"""A group while its rollouts are generated and judged."""

from __future__ import annotations

import asyncio

import pytest

from rewardflow import clock
from rewardflow.adapters.verl.accounting.group_report import GroupVerdicts
from rewardflow.adapters.verl.training.open_group import GroupIncomplete, OpenGroup


def group(*, size: int = 2, needs_all: bool = True) -> OpenGroup:
    return OpenGroup(size, validates=False, needs_all=needs_all, verdicts=GroupVerdicts(step=1))


def test_the_last_rollout_to_be_generated_is_told_from_the_others_and_only_once() -> None:
    under_way = group()
    assert [under_way.generated(session) for session in (1, 1, 0, 0)] == [False, False, True, False]


def test_a_verdict_that_needs_a_lost_rollout_is_not_waited_for() -> None:
    async def main() -> float:
        under_way = group()

        async def lose_the_other() -> None:
            await asyncio.sleep(3)
            under_way.error = "ToolFailed: no such tool"
            under_way.ended(1)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(lose_the_other())
            with pytest.raises(GroupIncomplete, match="is missing: ToolFailed: no such tool"):
                async with under_way.asking(0):
                    await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert clock.run(main()) == pytest.approx(3.0)


def test_nobody_asks_for_a_verdict_on_a_group_that_lacks_a_rollout() -> None:
    async def main() -> None:
        under_way = group()
        under_way.ended(1)
        with pytest.raises(GroupIncomplete, match="it has no output"):
            async with under_way.asking(0):
                pytest.fail("asked")

    clock.run(main())


@pytest.mark.parametrize("needs_all", [True, False])
def test_verdicts_that_can_still_come_are_waited_for(needs_all: bool) -> None:
    """A rollout that was asked about may be over long before another; one that is lost matters to whole groups only."""

    async def main() -> None:
        under_way = group(needs_all=needs_all)
        if needs_all:
            async with under_way.asking(1):
                pass
        under_way.ended(1)
        async with under_way.asking(0):
            await asyncio.sleep(100)
        under_way.ended(0)
        assert under_way.is_over

    clock.run(main())


def test_a_reward_that_times_out_is_not_taken_for_a_lost_rollout() -> None:
    async def main() -> None:
        under_way = group()
        with pytest.raises(TimeoutError):
            async with under_way.asking(0):
                raise TimeoutError

    clock.run(main())
