"""Yields the results of many coroutines, each as soon as it is there.

Always true: when the stream is over, by its end, an error or because it was closed, none of the coroutines runs any
more; the first error ends it and is raised as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any, TypeVar

from rewardflow.errors import RewardflowError

T = TypeVar("T")


async def as_completed(coroutines: Sequence[Coroutine[Any, Any, T]]) -> AsyncGenerator[T]:
    """Starts the coroutines in order. Closing the stream cancels those that still run."""
    outcomes: asyncio.Queue[tuple[T] | RewardflowError] = asyncio.Queue()
    failure: RewardflowError | None = None

    async def run(coroutine: Coroutine[Any, Any, T]) -> None:
        try:
            outcomes.put_nowait((await coroutine,))
        except RewardflowError as error:
            outcomes.put_nowait(error)

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(run(coroutine)) for coroutine in coroutines]
        try:
            for _ in running:
                outcome = await outcomes.get()
                if isinstance(outcome, RewardflowError):
                    failure = outcome
                    break
                yield outcome[0]
        except GeneratorExit:  # closed; a task group would wrap it, and then closing would raise
            pass
        for task in running:
            task.cancel()
    if failure is not None:
        raise failure
