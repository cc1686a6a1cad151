from __future__ import annotations

import asyncio
import contextlib
import contextvars
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from scoring import call_pool

from rewardflow import clock
from rewardflow.errors import AgentClosed, AgentError, InvalidInput
from rewardflow.reward.code.current_call import Call, report_headers, report_usage
from rewardflow.reward.code.thread_pool import ThreadPool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


@contextlib.asynccontextmanager
async def running(function: Callable[..., Any], *, size: int = 4, max_abandoned: int = 4) -> AsyncIterator[ThreadPool]:
    workers = ThreadPool(function, size=size, max_abandoned=max_abandoned)
    workers.start(asyncio.get_running_loop())
    try:
        yield workers
    finally:
        await workers.aclose(10.0)


class Gate:
    """A reward that hangs until the test opens its gate; one gate per name."""

    def __init__(self, *names: str) -> None:
        self.entered = {name: threading.Event() for name in names}
        self.opened = {name: threading.Event() for name in names}
        self.num_left = threading.Semaphore(0)

    def __call__(self, name: str | None = None) -> str:
        if name is None:
            return "free"
        self.entered[name].set()
        self.opened[name].wait()
        self.num_left.release()
        return name

    def open_all(self) -> None:
        for event in self.opened.values():
            event.set()

    async def get_stuck(self, workers: ThreadPool, name: str) -> None:
        """Makes a call, waits until it hangs in its thread, and cancels it."""
        task = asyncio.ensure_future(call_pool(workers, name=name))
        await asyncio.to_thread(self.entered[name].wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_a_call_returns_what_the_function_returns_and_raises_what_it_raises() -> None:
    def reward(solution: str) -> float:
        if solution == "bad":
            raise KeyError("no such answer")
        return 0.5

    async def main() -> None:
        async with running(reward) as workers:
            assert await call_pool(workers, solution="good") == 0.5
            with pytest.raises(KeyError, match="no such answer"):
                await call_pool(workers, solution="bad")

    asyncio.run(main())


def test_every_call_gets_its_own_result() -> None:
    async def main() -> None:
        async with running(lambda number: number * number, size=16) as workers:
            squares = await asyncio.gather(*(call_pool(workers, number=number) for number in range(2000)))
            assert squares == [number * number for number in range(2000)]
            assert workers.statistics().busy == 0

    asyncio.run(main())


def test_system_exit_in_a_reward_is_an_error_of_that_call_alone() -> None:
    def reward(leave: bool) -> str:
        if leave:
            sys.exit(3)
        return "here"

    async def main() -> None:
        async with running(reward, size=1) as workers:
            with pytest.raises(RuntimeError, match="SystemExit: 3"):
                await call_pool(workers, leave=True)
            assert await call_pool(workers, leave=False) == "here"

    asyncio.run(main())


def test_context_variables_of_the_caller_are_visible_in_the_thread() -> None:
    async def main() -> None:
        async with running(lambda: tenant.get()) as workers:
            tenant.set("acme")
            assert await call_pool(workers) == "acme"

    asyncio.run(main())


def test_usage_reported_before_an_exception_is_kept() -> None:
    def reward() -> None:
        report_usage(cost_usd=0.25, tokens=12)
        report_headers({"X-RateLimit-Remaining": "3"})
        raise ValueError("unreadable answer")

    async def main() -> None:
        call = Call(())
        async with running(reward) as workers:
            with pytest.raises(ValueError, match="unreadable answer"):
                await call_pool(workers, call)
        assert (call.cost_usd, call.tokens, call.headers) == (0.25, 12, {"x-ratelimit-remaining": "3"})

    asyncio.run(main())


def test_calls_made_before_the_threads_are_up_wait_for_them() -> None:
    async def main() -> None:
        workers = ThreadPool(lambda: 1.0, size=2, max_abandoned=0)
        workers.start(asyncio.get_running_loop())
        assert workers.num_usable == 2
        assert await asyncio.gather(*(call_pool(workers) for _ in range(10))) == [1.0] * 10
        await workers.aclose(10.0)

    asyncio.run(main())


def test_a_thousand_threads_start_while_the_loop_goes_on_ticking() -> None:
    async def main() -> None:
        workers = ThreadPool(lambda: 1.0, size=1024, max_abandoned=0)
        workers.start(asyncio.get_running_loop())
        num_seen: set[int] = set()
        while (num_started := workers.statistics().started) < 1024:
            num_seen.add(num_started)
            await asyncio.sleep(0.001)  # real time: threads start outside the loop, and this loop must tick meanwhile
        assert len(num_seen) > 1
        assert await call_pool(workers) == 1.0
        await workers.aclose(10.0)

    asyncio.run(main())


def test_a_cancelled_call_ends_at_once_and_its_thread_is_replaced() -> None:
    gate = Gate("stuck")

    async def main() -> None:
        async with running(gate, size=1, max_abandoned=1) as workers:
            await gate.get_stuck(workers, "stuck")
            assert workers.num_usable == 1
            assert await call_pool(workers) == "free"
            statistics = workers.statistics()
            assert (statistics.abandoned, statistics.replaced, statistics.started) == (1, 1, 2)
            gate.open_all()

    asyncio.run(main())


def test_a_late_result_is_never_delivered_and_the_replaced_thread_ends() -> None:
    gate = Gate("stuck")

    async def main() -> None:
        async with running(gate, size=1, max_abandoned=1) as workers:
            await gate.get_stuck(workers, "stuck")
            gate.open_all()
            await asyncio.to_thread(gate.num_left.acquire)
            assert [await call_pool(workers) for _ in range(20)] == ["free"] * 20
            assert workers.statistics().abandoned == 0
            assert workers.num_usable == 1

    before = set(threading.enumerate())
    asyncio.run(main())
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=60)  # it may still be on its way out
        assert not thread.is_alive()


def test_at_the_cap_a_stuck_thread_is_not_replaced_until_it_comes_back() -> None:
    gate = Gate("first", "second", "third")

    async def main() -> None:
        async with running(gate, size=2, max_abandoned=1) as workers:
            is_usable = asyncio.Event()
            workers.on_usable = is_usable.set
            for name, num_usable in (("first", 2), ("second", 1), ("third", 0)):
                await gate.get_stuck(workers, name)
                assert workers.num_usable == num_usable
            waiting = asyncio.ensure_future(call_pool(workers))

            gate.opened["second"].set()
            await is_usable.wait()
            assert workers.num_usable == 1
            assert await waiting == "free"
            assert workers.statistics().abandoned == 2

            is_usable.clear()
            gate.opened["first"].set()
            await is_usable.wait()
            assert workers.num_usable == 2
            gate.open_all()

    asyncio.run(main())


def test_a_call_cancelled_while_it_waits_for_a_thread_just_leaves_the_queue() -> None:
    gate = Gate("first", "queued")

    async def main() -> None:
        async with running(gate, size=1) as workers:
            first = asyncio.ensure_future(call_pool(workers, name="first"))
            await asyncio.to_thread(gate.entered["first"].wait)
            queued = asyncio.ensure_future(call_pool(workers, name="queued"))
            await asyncio.sleep(0)
            queued.cancel()
            with pytest.raises(asyncio.CancelledError):
                await queued
            gate.open_all()
            assert await first == "first"
            assert await call_pool(workers) == "free"
            assert not gate.entered["queued"].is_set()
            assert workers.statistics().abandoned == 0

    asyncio.run(main())


def test_closing_with_stuck_calls_returns_and_fails_the_ones_still_awaited() -> None:
    gate = Gate("given up", "awaited")

    async def main() -> None:
        workers = ThreadPool(gate, size=2, max_abandoned=0)
        workers.start(asyncio.get_running_loop())
        await gate.get_stuck(workers, "given up")
        awaited = asyncio.ensure_future(call_pool(workers, name="awaited"))
        await asyncio.to_thread(gate.entered["awaited"].wait)

        await workers.aclose(10.0)

        with pytest.raises(AgentClosed):
            await awaited
        with pytest.raises(AgentClosed):
            await call_pool(workers)

    asyncio.run(main())
    gate.open_all()


def test_a_thread_that_comes_back_after_the_loop_is_gone_ends() -> None:
    gate = Gate("given up", "awaited")

    async def main() -> None:
        workers = ThreadPool(gate, size=2, max_abandoned=0, name="late")
        workers.start(asyncio.get_running_loop())
        await gate.get_stuck(workers, "given up")
        awaited = asyncio.ensure_future(call_pool(workers, name="awaited"))
        await asyncio.to_thread(gate.entered["awaited"].wait)
        await workers.aclose(10.0)
        with pytest.raises(AgentClosed):
            await awaited

    asyncio.run(main())
    gate.open_all()
    late = [thread for thread in threading.enumerate() if thread.name.startswith("late-")]
    for thread in late:
        thread.join(30.0)
    assert not any(thread.is_alive() for thread in late)


def test_a_stuck_thread_does_not_keep_the_interpreter_alive() -> None:
    script = """
import asyncio, contextvars, threading
from rewardflow.reward.code.current_call import Call
from rewardflow.reward.code.thread_pool import ThreadPool
async def main():
    workers = ThreadPool(lambda: threading.Event().wait(), size=1, max_abandoned=0)
    workers.start(asyncio.get_running_loop())
    try:
        async with asyncio.timeout(0.2):
            await workers.call({}, Call(()), contextvars.copy_context())
    except TimeoutError:
        print("given up")
    await workers.aclose(5)
asyncio.run(main())
"""
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{script}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout == "given up\n"


def test_a_jumping_clock_stands_still_while_a_call_is_in_a_thread() -> None:
    def take_real_time() -> None:
        time.sleep(0.05)  # real time is the subject: it passes while the virtual clock stands still

    async def main() -> float:
        loop = asyncio.get_running_loop()
        async with running(take_real_time) as workers, asyncio.timeout(0.001):
            await asyncio.gather(*(call_pool(workers) for _ in range(8)))
        return loop.time()

    assert clock.run(main()) == 0.0


def test_sizes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidInput, match="size=0"):
        ThreadPool(print, size=0, max_abandoned=0)


def test_when_no_thread_can_be_started_calls_that_wait_fail_and_cancelled_ones_stay_cancelled() -> None:
    async def main() -> None:
        gate = Gate("first")
        async with running(gate, size=1) as workers, asyncio.TaskGroup() as tasks:
            first = tasks.create_task(call_pool(workers, name="first"))
            await asyncio.to_thread(gate.entered["first"].wait)
            cancelled, waiting = (asyncio.ensure_future(call_pool(workers)) for _ in range(2))
            await asyncio.sleep(0)
            cancelled.cancel()
            workers._on_start_failed(1, RuntimeError("can't start new thread"))  # as the starter thread does
            with pytest.raises(AgentError, match="no thread could be started for reward"):
                await waiting
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            gate.open_all()
            assert await first == "first"

    asyncio.run(main())
