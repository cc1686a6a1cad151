"""The jumping clock passes hours in milliseconds, in the right order, and never jumps past work outside the loop."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow import clock
from rewardflow.errors import InvalidInput


def now() -> float:
    return asyncio.get_running_loop().time()


async def on_a_thread(work: Callable[[], object]) -> None:
    """Runs work outside the loop and returns when it is done, as the agent's workers do: under a hold."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def target() -> None:
        work()
        loop.call_soon_threadsafe(done.set_result, None)

    with clock.hold(loop):
        thread = threading.Thread(target=target)
        thread.start()
        await done
    thread.join()


# -- time --


def test_a_sleep_of_hours_takes_hours_on_the_clock_and_none_elsewhere() -> None:
    async def main() -> float:
        await asyncio.sleep(5 * 3600)
        return now()

    assert clock.run(main()) == 5 * 3600


def test_the_clock_starts_at_zero_and_stands_still_while_code_runs() -> None:
    async def main() -> list[float]:
        times = [now()]
        for _ in range(100):
            await asyncio.sleep(0)
        return [*times, now()]

    assert clock.run(main()) == [0.0, 0.0]


@given(delays=st.lists(st.floats(min_value=0.0, max_value=1e9), max_size=30))
def test_sleepers_wake_in_order_and_never_early(delays: list[float]) -> None:
    woken: list[tuple[float, float]] = []

    async def sleeper(delay: float) -> None:
        await asyncio.sleep(delay)
        woken.append((delay, now()))

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            for delay in delays:
                tasks.create_task(sleeper(delay))

    clock.run(main())
    assert [delay for delay, _ in woken] == sorted(delays)
    assert all(delay <= at for delay, at in woken)
    assert all(at == pytest.approx(delay, rel=1e-12) for delay, at in woken)


def test_two_runs_are_the_same() -> None:
    async def main() -> list[tuple[int, float]]:
        seen: list[tuple[int, float]] = []
        rng = random.Random(7)

        async def worker(number: int) -> None:
            for _ in range(20):
                await asyncio.sleep(rng.expovariate(1.0))
                seen.append((number, now()))

        async with asyncio.TaskGroup() as tasks:
            for number in range(10):
                tasks.create_task(worker(number))
        return seen

    assert clock.run(main()) == clock.run(main())


def test_a_timer_a_hair_after_another_does_not_fire_with_it() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        fired: list[float] = []
        loop.call_at(1.0, lambda: fired.append(loop.time()))
        loop.call_at(1.0 + 5e-10, lambda: fired.append(loop.time()))
        await asyncio.sleep(2)
        return fired

    assert clock.run(main()) == [1.0, 1.0 + 5e-10]


def test_the_clock_still_runs_after_years() -> None:
    async def main() -> float:
        for _ in range(3000):
            await asyncio.sleep(86_400)
        await asyncio.sleep(0.001)
        asyncio.get_running_loop().call_at(now(), lambda: None)  # due at once, with nothing else to do
        await asyncio.sleep(1)
        return now()

    assert clock.run(main()) == pytest.approx(3000 * 86_400 + 1.001)


def test_a_sleep_without_end_is_no_timer() -> None:
    async def main() -> float:
        async with asyncio.timeout(None), asyncio.TaskGroup() as tasks:
            forever = tasks.create_task(asyncio.sleep(math.inf))
            release = asyncio.Event()
            threading.Timer(0.01, asyncio.get_running_loop().call_soon_threadsafe, [release.set]).start()
            await release.wait()
            forever.cancel()
        return now()

    assert clock.run(main()) == 0.0


# -- timeouts --


def test_a_timeout_ends_what_takes_longer_at_its_own_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await asyncio.sleep(3600)
        return now()

    assert clock.run(main()) == 60.0


def test_a_timeout_leaves_alone_what_ends_in_time() -> None:
    async def main() -> float:
        async with asyncio.timeout(3600):
            await asyncio.sleep(60)
        assert await asyncio.wait_for(asyncio.sleep(60, "done"), timeout=61) == "done"
        return now()

    assert clock.run(main()) == 120.0


# -- work outside the loop --


def test_the_clock_waits_for_a_thread_that_is_held() -> None:
    async def main() -> float:
        may_end = threading.Event()
        threading.Timer(0.02, may_end.set).start()
        async with asyncio.timeout(1):  # one virtual second would pass at once
            await on_a_thread(may_end.wait)
        return now()

    assert clock.run(main()) == 0.0


def test_without_a_hold_the_clock_does_not_wait() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        may_end = threading.Event()
        done = loop.create_future()
        thread = threading.Thread(target=lambda: (may_end.wait(), loop.call_soon_threadsafe(done.set_result, None)))
        thread.start()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.shield(done)
        may_end.set()
        await done
        thread.join()
        return now()

    assert clock.run(main()) == 1.0


def test_timers_go_on_when_the_last_hold_ends() -> None:
    events: list[str] = []

    async def ticker() -> None:
        for second in range(1, 4):
            await asyncio.sleep(1)
            events.append(f"tick {second}")

    async def worker(may_end: threading.Event, name: str) -> None:
        await on_a_thread(may_end.wait)
        events.append(f"{name} at {now():g}")

    async def main() -> float:
        first, second = threading.Event(), threading.Event()
        threading.Timer(0.01, first.set).start()
        threading.Timer(0.03, second.set).start()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ticker())
            tasks.create_task(worker(first, "first"))
            tasks.create_task(worker(second, "second"))
        return now()

    assert clock.run(main()) == 3.0
    assert events == ["first at 0", "second at 0", "tick 1", "tick 2", "tick 3"]


def test_threads_and_timers_take_turns() -> None:
    async def main() -> list[float]:
        times = []
        for _ in range(50):
            await on_a_thread(lambda: None)
            await asyncio.sleep(10)
            times.append(now())
        return times

    assert clock.run(main()) == [10.0 * turn for turn in range(1, 51)]


def test_a_hold_ends_with_its_block_even_by_an_error() -> None:
    async def main() -> float:
        with contextlib.suppress(ZeroDivisionError), clock.hold(asyncio.get_running_loop()):
            raise ZeroDivisionError
        await asyncio.sleep(1)
        return now()

    assert clock.run(main()) == 1.0


def test_an_end_without_a_beginning_is_refused() -> None:
    async def main() -> None:
        clock.end_hold(asyncio.get_running_loop())

    with pytest.raises(InvalidInput, match="begin_hold"):
        clock.run(main())


def test_a_hold_means_nothing_to_a_real_clock() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        with clock.hold(loop):
            await asyncio.sleep(0.001)  # real time is the subject: a timer fires during a hold
        clock.end_hold(loop)

    asyncio.run(main())


def test_the_default_threads_are_joined_in_real_time_at_the_end() -> None:
    ended = threading.Event()
    may_end = threading.Event()

    def work() -> None:
        may_end.wait()
        ended.set()

    async def main() -> None:
        asyncio.get_running_loop().run_in_executor(None, work)
        threading.Timer(0.02, may_end.set).start()

    clock.run(main())  # a warning that the threads did not end within 300 s would be an error here
    assert ended.is_set()


# -- run --


def test_an_error_comes_out_as_it_was_raised() -> None:
    async def main() -> None:
        await asyncio.sleep(3600)
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        clock.run(main())


def test_tasks_that_are_left_over_are_cancelled_and_may_clean_up() -> None:
    log: list[str] = []
    left_over: list[asyncio.Task[None]] = []

    async def leftover() -> None:
        try:
            await asyncio.sleep(math.inf)
        finally:
            await asyncio.sleep(5)
            log.append(f"cleaned up at {now():g}")

    async def main() -> str:
        left_over.append(asyncio.get_running_loop().create_task(leftover()))
        await asyncio.sleep(1)
        return "result"

    assert clock.run(main()) == "result"
    assert left_over[0].cancelled()
    assert log == ["cleaned up at 6"]


def test_it_does_not_run_inside_a_running_loop() -> None:
    async def main() -> None:
        with pytest.raises(InvalidInput, match="running event loop"):
            clock.run(asyncio.sleep(0))

    asyncio.run(main())


def test_chance_is_the_same_in_every_run_where_the_clock_has_a_seed() -> None:
    async def main() -> float:
        return clock.chance(asyncio.get_running_loop()).random()

    assert clock.run(main(), seed=1) == clock.run(main(), seed=1)
    assert clock.run(main(), seed=1) != clock.run(main(), seed=2)
    assert clock.run(main()) != clock.run(main())
    assert asyncio.run(main()) != asyncio.run(main())
