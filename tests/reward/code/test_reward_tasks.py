"""A task that reward code starts cannot end the loop, and all other tasks are made as before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rewardflow import clock
from rewardflow.reward.code.current_call import Call, enter_call
from rewardflow.reward.code.reward_tasks import guarded_tasks


async def leave(error: BaseException) -> None:
    await asyncio.sleep(1.0)
    raise error


@pytest.mark.parametrize("error", [SystemExit(3), SystemExit("enough")])
def test_a_task_of_a_call_that_raises_system_exit_fails_with_an_ordinary_exception(error: SystemExit) -> None:
    async def main() -> BaseException | None:
        with guarded_tasks(asyncio.get_running_loop()):
            enter_call(Call(()))
            task = asyncio.create_task(leave(error))
            await asyncio.wait([task])
            return task.exception()

    failed = clock.run(main())

    assert isinstance(failed, RuntimeError)
    assert str(failed) == f"reward code raised SystemExit: {error}"
    assert failed.__cause__ is error


def test_a_task_outside_a_call_still_ends_the_program() -> None:
    async def main() -> None:
        with guarded_tasks(asyncio.get_running_loop()):
            await asyncio.create_task(leave(SystemExit(3)))

    with pytest.raises(SystemExit, match="3"):
        clock.run(main())


@pytest.mark.parametrize("ends", ["returns", "raises", "is cancelled"])
def test_a_guarded_task_otherwise_ends_as_its_coroutine_does(ends: str) -> None:
    async def work() -> int:
        await asyncio.sleep(1.0)
        if ends == "raises":
            raise ValueError("odd")
        return 7

    async def main() -> str:
        with guarded_tasks(asyncio.get_running_loop()):
            enter_call(Call(()))
            task = asyncio.create_task(work(), name="mine")
            assert task.get_name() == "mine"
            assert "work" in repr(task)  # what a debugger shows
            if ends == "is cancelled":
                asyncio.get_running_loop().call_later(0.5, task.cancel)
            await asyncio.wait([task])
            if task.cancelled():
                return "is cancelled"
            return "raises" if isinstance(task.exception(), ValueError) else f"returns {task.result()}"

    assert clock.run(main()) == ("returns 7" if ends == "returns" else ends)


def test_the_factory_of_the_loops_owner_makes_the_tasks_and_is_back_afterwards() -> None:
    names: list[str] = []

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        names.append(coroutine.__qualname__.rpartition(".")[2])
        return asyncio.Task(coroutine, loop=loop, **options)

    async def main() -> Callable[..., Any] | None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(factory)
        with guarded_tasks(loop):
            enter_call(Call(()))
            with pytest.raises(RuntimeError):
                await asyncio.create_task(leave(SystemExit()))
        return loop.get_task_factory()

    assert clock.run(main()) is factory
    assert names[0] == "leave"  # the loop makes tasks of its own when it ends


def test_the_last_of_several_agents_on_a_loop_removes_the_guard() -> None:
    async def main() -> list[bool]:
        loop = asyncio.get_running_loop()
        first, second = guarded_tasks(loop), guarded_tasks(loop)
        first.__enter__()
        second.__enter__()
        guarded = [loop.get_task_factory() is not None]
        first.__exit__(None, None, None)
        guarded.append(loop.get_task_factory() is not None)
        second.__exit__(None, None, None)
        return [*guarded, loop.get_task_factory() is not None]

    assert clock.run(main()) == [True, True, False]
