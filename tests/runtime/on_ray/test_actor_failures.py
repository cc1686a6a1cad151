"""What an actor's error becomes on its way to the run."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncGenerator

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.runtime.on_ray.actor_failures import ActorFailed, FailureBoundary, telling


class CannotTravel(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class Actor:
    @telling
    async def fail(self) -> None:
        raise CannotTravel(1, 2)

    @telling
    async def refuse(self) -> None:
        raise InvalidInput("ranks must be at least 1, got 0")

    async def count(self) -> AsyncGenerator[int]:
        with FailureBoundary():
            yield 1
            raise CannotTravel(3, 4)


def test_a_foreign_error_becomes_text_that_can_be_sent() -> None:
    with pytest.raises(ActorFailed) as caught:
        asyncio.run(Actor().fail())
    told = pickle.loads(pickle.dumps(caught.value))
    assert told.summary.endswith("CannotTravel: 1 and 2")
    first, second = told.trace.splitlines()[:2]
    assert first == "Traceback (most recent call last):"
    assert __file__ in second
    assert "telling" not in told.trace


def test_an_error_of_ours_stays_what_it_is() -> None:
    with pytest.raises(InvalidInput, match="ranks must be at least 1"):
        asyncio.run(Actor().refuse())


def test_a_stream_gives_what_it_has_and_then_its_error() -> None:
    seen: list[int] = []

    async def read() -> None:
        async for number in Actor().count():
            seen.append(number)

    with pytest.raises(ActorFailed, match="3 and 4"):
        asyncio.run(read())
    assert seen == [1]
