"""What tests of an agent at work begin with: a reward that waits, the time, an agent that is open, and its threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import rewardflow as rf
from rewardflow import clock


async def sleeper(solution_str: str) -> float:
    """Takes as many seconds as the response says, and gives as many points."""
    await asyncio.sleep(float(solution_str))
    return float(solution_str)


def now() -> float:
    return asyncio.get_running_loop().time()


def with_agent(use: Callable[[rf.RewardAgent], Awaitable[None]], reward: Any = sleeper, **options: Any) -> None:
    """Run a coroutine with an open agent on the jumping clock."""

    async def main() -> None:
        async with rf.RewardAgent(reward, **options) as agent:
            await use(agent)

    clock.run(main())


def left_over(before: set[threading.Thread]) -> list[str]:
    """Threads that did not exist before and do not end."""
    new = set(threading.enumerate()) - before
    for thread in new:
        thread.join(5)
    return [thread.name for thread in new if thread.is_alive()]
