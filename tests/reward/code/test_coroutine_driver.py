"""A user's coroutine runs in its own context, in the caller's task, and cannot outlive its call."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import time

import pytest

from rewardflow import clock
from rewardflow.reward.calls.deadlines import Deadline, Deadlines
from rewardflow.reward.code import coroutine_driver as drive
from rewardflow.reward.code.coroutine_driver import begin_coroutine

colour: contextvars.ContextVar[str] = contextvars.ContextVar("colour", default="none")


async def driven(coroutine, name: str = "judge", deadline: Deadline | None = None) -> object:
    if deadline is None:
        deadline = Deadline(Deadlines(asyncio.get_running_loop()))
    is_done, answer = begin_coroutine(coroutine, contextvars.copy_context(), name, deadline)
    return answer if is_done else await answer


def limit(seconds: float) -> Deadline:
    loop = asyncio.get_running_loop()
    return Deadline(Deadlines(loop), loop.time() + seconds)


def test_an_answer_that_is_there_at_once_needs_no_waiting() -> None:
    async def quick() -> int:
        return 7

    async def main() -> None:
        deadline = Deadline(Deadlines(asyncio.get_running_loop()))
        assert begin_coroutine(quick(), contextvars.copy_context(), "judge", deadline) == (True, 7)

    clock.run(main())


def test_results_and_errors_come_through_after_waiting() -> None:
    async def slow(fails: bool) -> int:
        await asyncio.sleep(1)
        await asyncio.sleep(0)
        if fails:
            raise KeyError("x")
        return 8

    async def main() -> None:
        assert await driven(slow(False)) == 8
        with pytest.raises(KeyError):
            await driven(slow(True))

    clock.run(main())


def test_a_task_that_ends_with_generator_exit_is_an_ordinary_error_of_the_coroutine_that_awaits_it() -> None:
    closed: list[str] = []

    async def inner() -> None:
        raise GeneratorExit

    async def outer() -> None:
        try:
            await asyncio.get_running_loop().create_task(inner())
        finally:
            closed.append("outer")

    async def main() -> None:
        with pytest.raises(RuntimeError, match="reward code raised GeneratorExit"):
            await driven(outer())
        assert closed == ["outer"]

    clock.run(main())


def test_context_variables_stay_inside_across_awaits() -> None:
    seen: list[str] = []

    async def paint(name: str) -> None:
        colour.set(name)
        await asyncio.sleep(1)
        seen.append(colour.get())

    async def main() -> None:
        await asyncio.gather(*(driven(paint(name)) for name in ("red", "blue", "green")))
        assert colour.get() == "none"

    clock.run(main())
    assert sorted(seen) == ["blue", "green", "red"]


def test_timeouts_and_task_groups_inside_work_as_in_any_task() -> None:
    async def busy() -> str:
        try:
            async with asyncio.timeout(1):
                await asyncio.sleep(10)
        except TimeoutError:
            async with asyncio.TaskGroup() as tasks:
                child = tasks.create_task(asyncio.sleep(1, "done"))
            return child.result()
        return "not reached"

    async def main() -> None:
        assert await driven(busy()) == "done"

    clock.run(main())


def test_a_timeout_of_its_own_does_not_shorten_a_coroutines_life() -> None:
    async def patient() -> str:
        for _ in range(3):
            try:
                async with asyncio.timeout(1):
                    try:
                        await asyncio.sleep(10)
                    finally:
                        await asyncio.sleep(0.5)  # cleans up while the cancel request is still pending
            except TimeoutError:
                await asyncio.sleep(20)
        return "done"

    async def main() -> None:
        assert await driven(patient()) == "done"

    clock.run(main())


def test_cleaning_up_after_a_cancellation_is_awaited() -> None:
    cleaned: list[bool] = []

    async def tidy() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(0.5)
            cleaned.append(True)

    async def main() -> None:
        with pytest.raises(TimeoutError), limit(1) as deadline:
            await driven(tidy(), deadline=deadline)

    clock.run(main())
    assert cleaned == [True]


def test_a_coroutine_that_swallows_its_cancellation_is_closed_after_a_grace_period() -> None:
    async def stubborn() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)

    async def main() -> float:
        with pytest.raises(TimeoutError), limit(5) as deadline:
            await driven(stubborn(), deadline=deadline)
        return asyncio.get_running_loop().time()

    assert clock.run(main()) == pytest.approx(5 + drive.GRACE_S)


def test_a_result_returned_in_spite_of_cancellation_does_not_hide_the_timeout() -> None:
    async def late() -> int:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            return 5
        return 6

    async def main() -> None:
        with pytest.raises(TimeoutError), limit(1) as deadline:
            await driven(late(), deadline=deadline)

    clock.run(main())


def test_an_async_reward_that_blocks_the_loop_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    async def blocking() -> None:
        time.sleep(0.8)  # noqa: ASYNC251 (real time is the subject: the driver measures how long the loop is blocked)

    async def main() -> None:
        for _ in range(2):
            await driven(blocking(), "blocking_judge")

    with caplog.at_level(logging.WARNING):
        clock.run(main())
    assert sum("blocking_judge" in record.getMessage() for record in caplog.records) == 1
