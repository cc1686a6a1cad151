"""When an engine sleeps, and what it is given before it wakes. How much memory that frees only a GPU can tell."""

from __future__ import annotations

import asyncio

import pytest

from rewardflow.clock import run
from rewardflow.generate.vllm.sleeping import Sleep


class Engine:
    """Notes what is done to it, each call taking a second."""

    def __init__(self) -> None:
        self.done: list[str] = []

    async def sleep(self, level: int) -> None:
        await self._note(f"sleep {level}")

    async def wake_up(self, parts: list[str]) -> None:
        await self._note(f"wake {' '.join(parts)}")

    async def give_back(self) -> None:
        await self._note("give back")

    async def send_again(self) -> None:
        await self._note("send")

    async def _note(self, what: str) -> None:
        await asyncio.sleep(1)
        self.done.append(what)


def sleep_of(engine: Engine) -> Sleep:
    return Sleep(engine, give_back=engine.give_back, send_again=engine.send_again)


WOKEN = ["give back", "wake weights", "send", "give back", "wake kv_cache"]


def test_an_engine_sleeps_when_the_last_of_several_has_generated() -> None:
    engine = Engine()
    sleep = sleep_of(engine)

    async def generate(seconds: float) -> None:
        async with sleep.awake():
            engine.done.append("begin")
            await asyncio.sleep(seconds)
            engine.done.append("end")

    async def scenario() -> None:
        await sleep.start_asleep()
        async with asyncio.TaskGroup() as group:
            for seconds in (10, 30, 20):
                group.create_task(generate(seconds))

    run(scenario())
    assert engine.done == ["sleep 2", *WOKEN, *["begin"] * 3, *["end"] * 3, "sleep 2"]


def test_a_new_version_wakes_nobody_and_is_sent_to_whoever_generates_next() -> None:
    engine = Engine()
    sleep = sleep_of(engine)

    async def scenario() -> None:
        await sleep.start_asleep()
        async with sleep.awake():
            pass
        engine.done.append("publish")
        await sleep.renew()
        engine.done.append("train")
        async with sleep.awake():
            pass

    run(scenario())
    assert engine.done == ["sleep 2", *WOKEN, "sleep 2", "publish", "train", *WOKEN, "sleep 2"]


def test_an_engine_that_is_awake_gets_a_new_version_at_once() -> None:
    engine = Engine()
    sleep = sleep_of(engine)

    async def scenario() -> None:
        await sleep.start_asleep()
        async with sleep.awake():
            await sleep.renew()
            async with sleep.awake():  # has them, so they are not sent again
                engine.done.append("begin")

    run(scenario())
    assert engine.done == ["sleep 2", *WOKEN, "send", "begin", "sleep 2"]


def test_a_version_that_was_not_sent_whole_is_sent_before_anybody_generates() -> None:
    engine = Engine()

    async def no_room_at_first() -> None:
        await engine.send_again()
        if engine.done.count("send") == 1:
            raise OSError("no room")

    sleep = Sleep(engine, give_back=engine.give_back, send_again=no_room_at_first)

    async def scenario() -> None:
        await sleep.start_asleep()
        with pytest.raises(OSError, match="no room"):
            await sleep.begin_use()
        async with sleep.awake():
            engine.done.append("begin")

    run(scenario())
    assert engine.done[-5:] == ["send", "give back", "wake kv_cache", "begin", "sleep 2"]


def test_whoever_stops_early_lets_the_engine_sleep() -> None:
    engine = Engine()
    sleep = sleep_of(engine)

    async def scenario() -> None:
        with pytest.raises(ZeroDivisionError):
            async with sleep.awake():
                raise ZeroDivisionError

    run(scenario())
    assert engine.done == ["send", "sleep 2"]
