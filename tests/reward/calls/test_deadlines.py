"""Many time limits on one timer behave like one `asyncio.timeout` each."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow import clock
from rewardflow.reward.calls.deadlines import Deadline, Deadlines


@given(st.lists(st.tuples(st.floats(0, 50), st.none() | st.floats(0.1, 50)), min_size=1, max_size=40))
def test_each_call_ends_at_its_own_limit_or_when_it_is_done(calls: list[tuple[float, float | None]]) -> None:
    async def one(deadlines: Deadlines, takes_s: float, limit_s: float | None) -> tuple[str, float]:
        loop = asyncio.get_running_loop()
        try:
            with Deadline(deadlines, limit_s):
                await asyncio.sleep(takes_s)
        except TimeoutError:
            return "timeout", loop.time()
        return "done", loop.time()

    async def main() -> list[tuple[str, float]]:
        deadlines = Deadlines(asyncio.get_running_loop())
        return await asyncio.gather(*(one(deadlines, *call) for call in calls))

    for (takes_s, limit_s), (outcome, at_s) in zip(calls, clock.run(main()), strict=True):
        if limit_s is None or takes_s < limit_s:
            assert (outcome, at_s) == ("done", pytest.approx(takes_s))
        elif takes_s > limit_s:
            assert (outcome, at_s) == ("timeout", pytest.approx(limit_s))


def test_expiring_ends_the_wait_now() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        deadline = Deadline(Deadlines(loop), None)
        loop.call_later(3, deadline.expire)
        with pytest.raises(TimeoutError), deadline:
            await asyncio.sleep(100)
        return loop.time()

    assert clock.run(main()) == pytest.approx(3)


def test_somebody_elses_cancellation_stays_a_cancellation() -> None:
    async def main() -> bool:
        deadlines = Deadlines(asyncio.get_running_loop())

        async def wait() -> None:
            with Deadline(deadlines, 5.0):
                await asyncio.sleep(100)

        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(wait())
            await asyncio.sleep(1)
            task.cancel()
        return task.cancelled()

    assert clock.run(main())


def test_what_is_over_does_not_pile_up() -> None:
    async def main() -> int:
        deadlines = Deadlines(asyncio.get_running_loop())
        with Deadline(deadlines, 1e6):
            for _ in range(5000):
                with Deadline(deadlines, 1e6):
                    await asyncio.sleep(0)
        return len(deadlines._heap) + len(deadlines._queue)

    assert clock.run(main()) == 0


def test_no_timer_is_left_when_nothing_is_watched() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        with Deadline(Deadlines(loop), 1000.0):
            await asyncio.sleep(1)
        await asyncio.sleep(5)
        return loop.time()

    assert clock.run(main()) == pytest.approx(6)
