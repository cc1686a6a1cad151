"""Hooks run off the loop, plain or async, and their errors are told, not raised."""

from __future__ import annotations

import asyncio
import threading

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
    assert problem == "Judge.hook failed: KeyError: 'scores'"


def test_a_hook_that_hangs_ends_with_the_timeout() -> None:
    async def hook() -> None:
        await asyncio.Event().wait()

    _, problem = run(hook, timeout_s=3.0)
    assert problem is not None
    assert "TimeoutError" in problem
