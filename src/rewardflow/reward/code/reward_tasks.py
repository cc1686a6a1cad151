"""Keeps the tasks that reward code starts from ending the event loop.

Always true: while a loop is guarded, a task started inside a reward call that raises SystemExit or KeyboardInterrupt
fails with an ordinary exception, unless it may be a Ctrl-C; all other tasks are made as before.

asyncio raises these two through the loop, past everything that awaits the task. So they must not leave its coroutine.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any

from rewardflow.reward.code.context_transfer import as_ordinary_exception, may_be_ctrl_c
from rewardflow.reward.code.current_call import current_call


@contextlib.contextmanager
def guarded_tasks(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Guards the loop while the block runs; several agents may guard the same one."""
    before = loop.get_task_factory()
    guard = before if isinstance(before, _TaskGuard) else _TaskGuard(before)
    loop.set_task_factory(guard)
    guard.num_users += 1
    try:
        yield
    finally:
        guard.num_users -= 1
        if not guard.num_users and loop.get_task_factory() is guard:
            loop.set_task_factory(guard.before)


class _TaskGuard:
    """A task factory that wraps the coroutines of reward code."""

    def __init__(self, before: Any) -> None:
        self.before = before
        self.num_users = 0

    def __call__(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        if current_call() is not None and asyncio.iscoroutine(coroutine):
            coroutine = _GuardedCoroutine(coroutine)
        make: Callable[..., Any] = self.before or _make_task
        return make(loop, coroutine, **options)


def _make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coroutine, loop=loop, **options)


class _GuardedCoroutine(Coroutine[Any, Any, Any]):
    """Another coroutine, except that what would end the program leaves it as an ordinary exception."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()

    def __getattr__(self, name: str) -> Any:  # names and frames, which a task shows
        return getattr(self._coroutine, name)

    def send(self, value: Any) -> Any:
        return self._advance(self._coroutine.send, value)

    def throw(self, error: Any, *details: Any) -> Any:
        return self._advance(self._coroutine.throw, error, *details)

    def close(self) -> None:
        self._coroutine.close()

    @staticmethod
    def _advance(step: Callable[..., Any], *values: Any) -> Any:
        try:
            return step(*values)
        except (KeyboardInterrupt, SystemExit) as error:
            if may_be_ctrl_c(error):
                raise
            raise as_ordinary_exception(error) from error
