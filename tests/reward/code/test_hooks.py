"""Hooks may be plain or async; their errors are returned and logged, not raised."""

from __future__ import annotations

import asyncio
import re
import threading

import pytest

from rewardflow import clock
from rewardflow.reward.code.hooks import Hooks


def run(hook, *arguments: object, timeout_s: float = 5.0) -> tuple[object, str | None]:
    async def main() -> tuple[object, str | None]:
        hooks = Hooks(timeout_s=timeout_s)
        try:
            return await hooks.run("Judge.hook", hook, *arguments)
        finally:
            await hooks.aclose(1.0)

    return clock.run(main())


def test_a_plain_hook_runs_in_another_thread() -> None:
    result, problem = run(threading.get_ident)
    assert problem is None
    assert result != threading.get_ident()


def test_an_async_hook_is_awaited_also_behind_a_plain_function() -> None:
    async def hook(x: int) -> int:
        await asyncio.sleep(1)
        return x + 1

    assert run(hook, 1) == (2, None)
    assert run(lambda x: hook(x), 1) == (2, None)


def test_an_error_is_returned_with_the_hooks_name() -> None:
    def hook() -> None:
        raise KeyError("scores")

    result, problem = run(hook)
    assert result is None
    assert problem is not None
    assert re.fullmatch(r"Judge\.hook failed: KeyError: 'scores' \(test_hooks\.py, line \d+, in hook\)", problem)


def test_a_hook_that_hangs_ends_with_the_timeout() -> None:
    async def hook() -> None:
        await asyncio.Event().wait()

    _, problem = run(hook, timeout_s=3.0)
    assert problem is not None
    assert "TimeoutError" in problem


def test_expiring_ends_running_hooks_and_later_ones_need_a_time_limit_in_the_call() -> None:
    async def hangs() -> None:
        await asyncio.Event().wait()

    async def answers() -> str:
        return "closed"

    async def main() -> tuple[float, str | None, str | None, object]:
        loop = asyncio.get_running_loop()
        hooks = Hooks(timeout_s=None)
        loop.call_later(2, hooks.expire)
        _, ended = await hooks.run("Judge.log", hangs)
        ended_at_s = loop.time()
        _, refused = await hooks.run("Judge.log", answers)
        result, _ = await hooks.run("Judge.close", answers, timeout_s=1.0)
        await hooks.aclose(1.0)
        return ended_at_s, ended, refused, result

    ended_at_s, ended, refused, result = clock.run(main())
    assert ended_at_s == 2
    assert ended is not None
    assert refused == "Judge.log failed: the agent was closed before it could run"
    assert result == "closed"


def test_an_error_that_repeats_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def hook() -> None:
        raise KeyError("scores")

    async def main() -> None:
        hooks = Hooks(timeout_s=5.0)
        for _ in range(3):
            await hooks.run("Judge.log", hook)
        await hooks.aclose(1.0)

    clock.run(main())
    (record,) = caplog.records
    assert record.getMessage().startswith("Judge.log failed: KeyError: 'scores' (")


def test_a_cancellation_of_the_caller_is_not_taken_for_an_error_of_the_hook() -> None:
    async def hangs() -> None:
        await asyncio.Event().wait()

    async def main() -> bool:
        hooks = Hooks(timeout_s=None)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(hooks.run("Judge.log", hangs))
            await asyncio.sleep(1)
            task.cancel()
        return task.cancelled()

    assert clock.run(main())
