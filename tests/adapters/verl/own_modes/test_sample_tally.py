"""Counting the verdicts of verl's own modes."""

from __future__ import annotations

import asyncio

from rewardflow.adapters.verl.own_modes.sample_tally import Tally
from rewardflow.types import Reward

SCORED = Reward(value=1.0)


def test_a_group_is_taken_once_with_all_its_verdicts() -> None:
    async def main() -> None:
        tally = Tally()
        for index in range(2):
            await tally.asked("a", index, 3)
        await tally.answered("a", 1, Reward(kind="timeout", error="late"))
        await tally.answered("a", 0, SCORED)
        (report,) = await tally.take(["a"])
        assert (report.step, report.size) == (3, 2)
        assert [(one.index, one.reward.kind) for one in report.verdicts] == [(1, "timeout"), (0, None)]
        (again,) = await tally.take(["a"])
        assert (again.size, again.verdicts, again.error) == (0, (), "nothing of it was generated")

    asyncio.run(main())


def test_groups_are_generated_when_every_sample_of_each_is_with_the_judge() -> None:
    async def main() -> None:
        tally = Tally()
        await tally.asked("a", 0, 1)
        await tally.asked("a", 1, 1)
        await tally.asked("b", 0, 1)
        assert await tally.generated_for_s(["a", "b"], 2) is None
        assert await tally.generated_for_s(["a", "c"], 2) is None
        await tally.asked("b", 1, 1)
        await asyncio.sleep(0.01)
        generated_for_s = await tally.generated_for_s(["a", "b"], 2)
        assert generated_for_s is not None
        assert generated_for_s >= 0.01

    asyncio.run(main())


def test_time_with_verdicts_out_counts_once_however_many_are() -> None:
    async def main() -> None:
        tally = Tally()
        await tally.asked("a", 0, 1)
        await tally.asked("b", 0, 1)
        await asyncio.sleep(0.02)
        await tally.answered("a", 0, SCORED)
        await tally.answered("b", 0, SCORED)
        out_s = await tally.out_s()
        assert out_s >= 0.02
        await asyncio.sleep(0.02)
        assert await tally.out_s() == out_s  # nothing was out meanwhile

    asyncio.run(main())


def test_a_verdict_on_a_group_that_has_left_is_not_kept() -> None:
    async def main() -> None:
        tally = Tally()
        await tally.asked("a", 0, 1)
        await tally.take(["a"])
        await tally.answered("a", 0, SCORED)
        (report,) = await tally.take(["a"])
        assert report.verdicts == ()

    asyncio.run(main())


def test_the_first_reason_for_halting_is_kept() -> None:
    async def main() -> None:
        tally = Tally()
        assert await tally.halted() is None
        await tally.halt("the budget is spent")
        await tally.halt("gone")
        assert await tally.halted() == "the budget is spent"

    asyncio.run(main())
