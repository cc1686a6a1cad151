"""Streams become one stream of batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from rewardflow import clock
from rewardflow.runtime.on_ray.merging import in_batches

closed: list[str] = []


async def ticking(name: str, every_s: float, count: int, *, fails: bool = False) -> AsyncGenerator[str]:
    try:
        for number in range(count):
            await asyncio.sleep(every_s)
            yield f"{name}{number}"
        if fails:
            raise KeyError(name)
    finally:
        closed.append(name)


async def collected(*sources: AsyncGenerator[str], pause_s: float = 0.0) -> list[list[str]]:
    batches = []
    async with aclosing(in_batches(sources)) as stream:
        async for batch in stream:
            batches.append(batch)
            await asyncio.sleep(pause_s)
    return batches


def test_what_came_while_nobody_asked_comes_together() -> None:
    batches = clock.run(collected(ticking("a", 1.0, 6), pause_s=2.5))
    assert batches[0] == ["a0"]
    assert max(len(batch) for batch in batches) >= 2
    assert [item for batch in batches for item in batch] == [f"a{number}" for number in range(6)]


def test_streams_are_read_at_the_same_time() -> None:
    batches = clock.run(collected(ticking("a", 1.0, 2), ticking("b", 1.5, 2)))
    assert [item for batch in batches for item in batch] == ["a0", "b0", "a1", "b1"]


def test_no_streams_are_an_empty_one() -> None:
    assert clock.run(collected()) == []


def test_the_first_error_is_raised_as_it_was_and_ends_the_other_streams() -> None:
    closed.clear()
    with pytest.raises(KeyError, match="a"):
        clock.run(collected(ticking("a", 1.0, 2, fails=True), ticking("b", 1.5, 100)))
    assert sorted(closed) == ["a", "b"]


def test_an_error_does_not_interrupt_whoever_is_busy_with_the_batch_before() -> None:
    seen: list[str] = []

    async def slow() -> None:
        async with aclosing(in_batches([ticking("a", 1.0, 1, fails=True)])) as stream:
            async for batch in stream:
                await asyncio.sleep(5.0)
                seen.extend(batch)

    with pytest.raises(KeyError):
        clock.run(slow())
    assert seen == ["a0"]


def test_closing_early_closes_the_streams() -> None:
    closed.clear()

    async def first() -> list[str]:
        async with aclosing(in_batches([ticking("a", 1.0, 5), ticking("b", 9.0, 5)])) as stream:
            async for batch in stream:
                return batch
        return []

    assert clock.run(first()) == ["a0"]
    assert sorted(closed) == ["a", "b"]
