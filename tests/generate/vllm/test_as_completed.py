"""Many coroutines as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from rewardflow import clock
from rewardflow.errors import FlowError
from rewardflow.generate.vllm.as_completed import as_completed


class Sleepers:
    """Each gives the seconds it slept, and says if it was not let finish."""

    def __init__(self) -> None:
        self.cancelled: list[float] = []

    async def sleep(self, seconds: float) -> float:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.cancelled.append(seconds)
            raise
        return seconds

    async def fail(self, seconds: float) -> float:
        await asyncio.sleep(seconds)
        raise FlowError(f"after {seconds}")

    def stream(self, *seconds: float) -> AsyncGenerator[float]:
        return as_completed([self.sleep(one) for one in seconds])


def test_results_come_in_the_order_in_which_they_are_there() -> None:
    async def run() -> list[float]:
        return [one async for one in Sleepers().stream(3, 1, 2)]

    assert clock.run(run()) == [1, 2, 3]


def test_nothing_asked_is_nothing_given() -> None:
    async def run() -> list[float]:
        return [one async for one in Sleepers().stream()]

    assert clock.run(run()) == []


def test_closing_cancels_the_others_and_raises_nothing() -> None:
    sleepers = Sleepers()

    async def run() -> None:
        async with aclosing(sleepers.stream(3, 1, 2)) as stream:
            assert await anext(stream) == 1

    clock.run(run())
    assert sorted(sleepers.cancelled) == [2, 3]


def test_an_error_is_raised_as_it_is_and_cancels_the_others() -> None:
    sleepers = Sleepers()

    async def run() -> list[float]:
        found = []
        async with aclosing(as_completed([sleepers.sleep(1), sleepers.fail(2), sleepers.sleep(3)])) as stream:
            async for one in stream:
                found.append(one)
        return found

    with pytest.raises(FlowError, match="after 2"):
        clock.run(run())
    assert sleepers.cancelled == [3]


def test_a_cancelled_caller_cancels_all_of_them() -> None:
    sleepers = Sleepers()

    async def run() -> None:
        async with asyncio.timeout(1.5):
            async for _ in sleepers.stream(3, 1, 2):
                pass

    with pytest.raises(TimeoutError):
        clock.run(run())
    assert sorted(sleepers.cancelled) == [2, 3]
