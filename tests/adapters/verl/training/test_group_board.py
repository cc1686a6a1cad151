"""How far the groups of a run are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rewardflow import clock
from rewardflow.adapters.verl.training.group_board import GroupReport, Progress
from rewardflow.errors import AgentHalted


def report(uid: str) -> GroupReport:
    return GroupReport(uid=uid, step=1, size=2, verdicts=())


def test_waiting_ends_when_the_last_group_is_generated() -> None:
    async def main() -> float:
        progress = Progress()

        async def generate() -> None:
            for seconds, uid in ((1, "b"), (4, "a")):
                await asyncio.sleep(seconds)
                await progress.generated(uid)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(generate())
            await progress.wait_until_generated(["a", "b"])
            return asyncio.get_running_loop().time()

    assert clock.run(main()) == pytest.approx(5.0)


def test_groups_come_in_the_order_of_their_verdicts_and_only_those_asked_for() -> None:
    async def main() -> list[str]:
        progress = Progress()
        for uid in ("c", "other", "a"):
            await progress.judged(report(uid))
        return [found.uid for found in await progress.wait_until_judged(["a", "b", "c"], 2)]

    assert clock.run(main()) == ["c", "a"]


def test_a_judged_group_is_generated_too() -> None:
    async def main() -> None:
        progress = Progress()
        await progress.judged(report("a"))
        await progress.wait_until_generated(["a"])

    clock.run(main())


def test_a_change_between_looking_and_waiting_is_not_missed() -> None:
    async def main() -> None:
        progress = Progress()
        seen = await progress.num_changes()
        await progress.generated("a")
        await progress.wait_for_change(seen)

    clock.run(main())


@pytest.mark.parametrize(
    "wait",
    [
        lambda progress: progress.wait_until_judged(["a"], 1),
        lambda progress: progress.wait_until_generated(["a"]),
        lambda progress: progress.wait_for_change(0),
    ],
)
def test_whoever_waits_is_told_when_no_verdict_will_come(wait: Callable[[Progress], Awaitable[object]]) -> None:
    async def main() -> None:
        progress = Progress()

        async def halt() -> None:
            await asyncio.sleep(1)
            await progress.halt("ServiceOutage: down")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(halt())
            with pytest.raises(AgentHalted, match="ServiceOutage: down"):
                await wait(progress)

    clock.run(main())


def test_nobody_trains_on_what_was_judged_before_the_agent_gave_up() -> None:
    async def main() -> None:
        progress = Progress()
        await progress.judged(report("a"))
        await progress.halt("BudgetExhausted: spent")
        with pytest.raises(AgentHalted, match="BudgetExhausted"):
            await progress.wait_until_judged(["a"], 1)

    clock.run(main())


def test_time_with_verdicts_out_is_counted_once_however_many_are_out() -> None:
    async def main() -> list[float]:
        progress = Progress()
        seen = []
        await progress.verdict_out("a")
        await asyncio.sleep(1)
        await progress.verdict_out("b")
        await asyncio.sleep(1)
        seen.append(await progress.out_s())
        await progress.judged(report("a"))
        await asyncio.sleep(1)
        await progress.judged(report("b"))
        await asyncio.sleep(10)
        seen.append(await progress.out_s())
        await progress.verdict_out("c")
        await asyncio.sleep(2)
        seen.append(await progress.out_s())
        return seen

    assert clock.run(main()) == pytest.approx([2.0, 3.0, 5.0])


def test_groups_that_left_are_forgotten() -> None:
    async def main() -> list[GroupReport]:
        progress = Progress()
        await progress.judged(report("a"))
        await progress.forget(["a"])
        await progress.judged(report("b"))
        return await progress.wait_until_judged(["a", "b"], 1)

    assert [found.uid for found in clock.run(main())] == ["b"]
