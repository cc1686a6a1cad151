"""Computations run beside the event loop, and every caller sees them end."""

import asyncio
import contextlib
import threading

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.flow.device_thread import DeviceThread, Emitter


def test_work_runs_on_one_thread_in_the_order_it_was_handed_in() -> None:
    async def main() -> None:
        done: list[tuple[int, int]] = []
        with DeviceThread("test") as thread:
            async with asyncio.TaskGroup() as tasks:
                for i in range(20):
                    tasks.create_task(thread.run(lambda i=i: done.append((i, threading.get_ident()))))
        assert [i for i, _ in done] == list(range(20))
        assert {ident for _, ident in done}.isdisjoint({threading.get_ident()})
        assert len({ident for _, ident in done}) == 1

    asyncio.run(main())


def test_an_error_reaches_whoever_waits_and_the_thread_goes_on() -> None:
    async def main() -> None:
        with DeviceThread("test") as thread:
            with pytest.raises(ZeroDivisionError):
                await thread.run(lambda: 1 // 0)
            assert await thread.run(lambda: 7) == 7

    asyncio.run(main())


def test_a_cancelled_wait_ends_when_the_computation_has() -> None:
    async def main() -> None:
        may_end, has_ended = threading.Event(), threading.Event()

        def compute() -> None:
            may_end.wait()
            has_ended.set()

        with DeviceThread("test") as thread:
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(thread.run(compute))
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.sleep(0.01)
                assert not waiting.done()
                may_end.set()
            assert has_ended.is_set()
            assert waiting.cancelled()

    asyncio.run(main())


def test_a_stream_gives_results_while_the_computation_goes_on() -> None:
    async def main() -> None:
        may_go_on = threading.Event()

        def compute(emitter: Emitter[int]) -> None:
            emitter.emit(1)
            may_go_on.wait()
            emitter.emit(2)

        with DeviceThread("test") as thread:
            seen = []
            async with contextlib.aclosing(thread.stream(compute)) as results:
                async for result in results:
                    seen.append(result)
                    may_go_on.set()
        assert seen == [1, 2]

    asyncio.run(main())


def test_a_stream_that_is_left_early_tells_the_computation_to_stop() -> None:
    async def main() -> None:
        num_emitted = 0

        def compute(emitter: Emitter[int]) -> None:
            nonlocal num_emitted
            while not emitter.is_stopped:
                num_emitted += 1
                emitter.emit(num_emitted)

        with DeviceThread("test") as thread:
            async with contextlib.aclosing(thread.stream(compute)) as results:
                async for _ in results:
                    break
            count = num_emitted
            assert await thread.run(lambda: num_emitted) == count

    asyncio.run(main())


def test_an_error_after_some_results_comes_after_them() -> None:
    async def main() -> None:
        def compute(emitter: Emitter[int]) -> None:
            emitter.emit(1)
            raise ValueError("no more")

        with DeviceThread("test") as thread:
            results = thread.stream(compute)
            assert await anext(results) == 1
            with pytest.raises(ValueError, match="no more"):
                await anext(results)

    asyncio.run(main())


def test_a_thread_that_was_not_entered_refuses_work() -> None:
    with pytest.raises(InvalidInput, match="must be entered"):
        asyncio.run(DeviceThread("test").run(lambda: 1))


@pytest.mark.parametrize("error", [StopIteration(), asyncio.CancelledError()])
def test_an_error_that_means_something_else_to_a_coroutine_still_arrives(error: BaseException) -> None:
    def compute() -> None:
        raise error

    async def main() -> None:
        with DeviceThread("test") as thread:
            async with asyncio.timeout(10):
                with pytest.raises(RuntimeError, match=type(error).__name__) as raised:
                    await thread.run(compute)
        assert raised.value.__cause__ is error

    asyncio.run(main())
