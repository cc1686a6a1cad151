"""How far the groups of a run are."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rewardflow import clock
from rewardflow.adapters.verl.accounting.group_board import GroupBoard
from rewardflow.adapters.verl.accounting.group_report import GroupReport
from rewardflow.errors import AgentHalted
from rewardflow.types import Reward

SCORED = Reward(value=1.0)


def report(uid: str) -> GroupReport:
    return GroupReport(uid=uid, step=1, size=2, verdicts=())


def test_waiting_ends_when_the_last_group_is_generated() -> None:
    async def main() -> float:
        board = GroupBoard()

        async def generate() -> None:
            for seconds, uid in ((1, "b"), (4, "a")):
                await asyncio.sleep(seconds)
                await board.generated(uid)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(generate())
            await board.wait_until_generated(["a", "b"])
            return asyncio.get_running_loop().time()

    assert clock.run(main()) == pytest.approx(5.0)


def test_groups_come_in_the_order_of_their_verdicts_and_only_those_asked_for() -> None:
    async def main() -> list[str]:
        board = GroupBoard()
        for uid in ("c", "other", "a"):
            await board.judged(report(uid))
        return [found.uid for found in await board.wait_until_judged(["a", "b", "c"], 2)]

    assert clock.run(main()) == ["c", "a"]


def test_in_the_order_of_prompts_a_late_group_holds_back_those_behind_it() -> None:
    async def main() -> tuple[list[str], float]:
        board = GroupBoard()

        async def judge() -> None:
            for seconds, uid in ((1, "d"), (1, "b"), (5, "a")):
                await asyncio.sleep(seconds)
                await board.judged(report(uid))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(judge())
            found = await board.wait_until_first_judged(["a", "b", "c", "d"], 1)
            return [one.uid for one in found], asyncio.get_running_loop().time()

    assert clock.run(main()) == (["a", "b"], pytest.approx(7.0))


def test_a_judged_group_is_generated_too() -> None:
    async def main() -> None:
        board = GroupBoard()
        await board.judged(report("a"))
        await board.wait_until_generated(["a"])

    clock.run(main())


def test_a_change_between_looking_and_waiting_is_not_missed() -> None:
    async def main() -> None:
        board = GroupBoard()
        seen = await board.num_changes()
        await board.generated("a")
        await board.wait_for_change(seen)

    clock.run(main())


@pytest.mark.parametrize(
    "wait",
    [
        lambda board: board.wait_until_judged(["a"], 1),
        lambda board: board.wait_until_first_judged(["a"], 1),
        lambda board: board.wait_until_generated(["a"]),
        lambda board: board.wait_for_change(0),
    ],
)
def test_a_wait_ends_with_the_reason_when_no_verdict_will_come(wait: Callable[[GroupBoard], Awaitable[object]]) -> None:
    async def main() -> None:
        board = GroupBoard()

        async def halt() -> None:
            await asyncio.sleep(1)
            await board.halt("ServiceOutage: down")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(halt())
            with pytest.raises(AgentHalted, match="ServiceOutage: down"):
                await wait(board)

    clock.run(main())


def test_nobody_trains_on_what_was_judged_before_the_agent_gave_up() -> None:
    async def main() -> None:
        board = GroupBoard()
        await board.judged(report("a"))
        await board.halt("BudgetExhausted: spent")
        with pytest.raises(AgentHalted, match="BudgetExhausted"):
            await board.wait_until_judged(["a"], 1)

    clock.run(main())


def test_time_with_verdicts_outstanding_counts_once_however_many_are() -> None:
    async def main() -> list[float]:
        board = GroupBoard()
        seen = []
        await board.asked("a", 0, 1)
        await asyncio.sleep(1)
        await board.asked("b", 0, 1)
        await asyncio.sleep(1)
        seen.append(await board.take_outstanding_s())
        await board.judged(report("a"))
        await asyncio.sleep(1)
        await board.answered("b", 0, SCORED)
        await asyncio.sleep(10)
        seen.append(await board.take_outstanding_s())
        await board.asked("c", 0, 1)
        await asyncio.sleep(2)
        seen.append(await board.take_outstanding_s())
        return seen

    assert clock.run(main()) == pytest.approx([2.0, 1.0, 2.0])


def test_a_group_is_outstanding_from_its_first_sample_until_it_is_judged() -> None:
    async def main() -> float:
        board = GroupBoard()
        await board.asked("a", 1, 1)
        await asyncio.sleep(5)
        await board.judged(report("a"))
        await asyncio.sleep(5)
        return await board.take_outstanding_s()

    assert clock.run(main()) == pytest.approx(5.0)


def test_groups_that_left_are_forgotten() -> None:
    async def main() -> list[GroupReport]:
        board = GroupBoard()
        await board.asked("a", 0, 1)
        await board.judged(report("a"))
        assert await board.take(["a"]) == [report("a")]
        await board.judged(report("b"))
        return await board.wait_until_judged(["a", "b"], 1)

    assert [found.uid for found in clock.run(main())] == ["b"]


def test_a_group_of_single_samples_is_taken_once_with_all_its_verdicts() -> None:
    async def main() -> None:
        board = GroupBoard(now=asyncio.get_running_loop().time)
        began_s = asyncio.get_running_loop().time()
        for index in range(2):
            await board.asked("a", index, 3)
        await asyncio.sleep(4)
        await board.answered("a", 1, Reward(kind="timeout", error="late"))
        await board.answered("a", 0, SCORED)
        (found,) = await board.take(["a"])
        assert (found.step, found.size) == (3, 2)
        assert [(one.index, one.reward.kind) for one in found.verdicts] == [(1, "timeout"), (0, None)]
        assert (found.first_generated_s, found.judged_s) == (began_s, pytest.approx(began_s + 4))
        (again,) = await board.take(["a"])
        assert (again.size, again.verdicts, again.error) == (0, (), "nothing of it was generated")

    clock.run(main())


def test_groups_are_generated_when_every_sample_of_each_is_with_the_judge() -> None:
    async def main() -> None:
        board = GroupBoard(now=asyncio.get_running_loop().time)
        await board.asked("a", 0, 1)
        await board.asked("a", 1, 1)
        await board.asked("b", 0, 1)
        assert await board.generated_for_s(["a", "b"], 2) is None
        assert await board.generated_for_s(["a", "c"], 2) is None
        await asyncio.sleep(3)
        await board.asked("b", 1, 1)
        await asyncio.sleep(1)
        assert await board.generated_for_s(["a", "b"], 2) == pytest.approx(1.0)

    clock.run(main())


def test_a_verdict_on_a_group_that_has_left_is_not_kept_but_was_outstanding() -> None:
    async def main() -> None:
        board = GroupBoard()
        await board.asked("a", 0, 1)
        await board.take(["a"])
        await asyncio.sleep(2)
        await board.answered("a", 0, SCORED)
        (found,) = await board.take(["a"])
        assert found.verdicts == ()
        assert await board.take_outstanding_s() == pytest.approx(2.0)

    clock.run(main())


def test_the_first_reason_for_halting_is_kept() -> None:
    async def main() -> None:
        board = GroupBoard()
        await board.raise_if_halted()
        await board.halt("the budget is spent")
        await board.halt("gone")
        with pytest.raises(AgentHalted, match="the reward agent gave up: the budget is spent"):
            await board.raise_if_halted()

    clock.run(main())
