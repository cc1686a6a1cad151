"""Runs the optional methods of a user's class (post-processing, logging, closing): plain ones in threads, off the loop.

Always true: an error in a hook is logged and returned, never raised, so that no verdict is lost. A hook's time limit
begins when it starts, not when it queues; `expire` ends all hooks that are running.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from rewardflow.reward.calls.deadlines import Deadline, Deadlines
from rewardflow.reward.calls.faults import describe_with_place
from rewardflow.reward.code.contract import is_coroutine_function
from rewardflow.reward.code.coroutine_driver import begin_coroutine
from rewardflow.reward.code.current_call import Call
from rewardflow.reward.code.thread_pool import ThreadPool

logger = logging.getLogger(__name__)

_THREADS = 8


class Hooks:
    """Runs plain hooks in a few threads, which start with the first such hook, and async hooks on the loop."""

    def __init__(self, *, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._threads: ThreadPool | None = None
        self._slots = asyncio.Semaphore(_THREADS)
        self._running: set[Deadline] = set()
        self._logged_problems: set[str] = set()
        self._is_expired = False

    async def run(
        self, name: str, hook: Callable[..., Any], *arguments: Any, timeout_s: float | None = None
    ) -> tuple[Any, str | None]:
        """Returns the hook's result and None; or None and a message that says what went wrong."""
        loop = asyncio.get_running_loop()
        limit_s = timeout_s or self._timeout_s
        num_requests = _num_cancel_requests()
        async with self._slots:
            if self._is_expired and timeout_s is None:
                return None, f"{name} failed: the agent was closed before it could run"
            deadline = Deadline(Deadlines(loop), None if limit_s is None else loop.time() + limit_s)
            self._running.add(deadline)
            try:
                with deadline:
                    return await self._call(name, hook, arguments, deadline), None
            except BaseException as error:
                if not _came_from_hook(error, num_requests):
                    raise
                problem = f"{name} failed: {describe_with_place(error)}"
                if problem not in self._logged_problems:  # it may fail in the same way for every group
                    self._logged_problems.add(problem)
                    logger.error("%s", problem)
                return None, problem
            finally:
                self._running.discard(deadline)

    def expire(self) -> None:
        """Ends every running hook; later ones start only with a `timeout_s` in the call. For closing."""
        self._is_expired = True
        for deadline in list(self._running):
            deadline.expire()

    async def aclose(self, timeout_s: float) -> None:
        if self._threads is not None:
            await self._threads.aclose(timeout_s)

    async def _call(self, name: str, hook: Callable[..., Any], arguments: tuple[Any, ...], deadline: Deadline) -> Any:
        if is_coroutine_function(hook):
            return await _run_coroutine(name, hook(*arguments), deadline)
        kwargs = {"hook": hook, "arguments": arguments}
        result = await self._started_threads().call(kwargs, Call(()), contextvars.copy_context())
        return await _run_coroutine(name, result, deadline) if inspect.iscoroutine(result) else result

    def _started_threads(self) -> ThreadPool:
        if self._threads is None:
            self._threads = ThreadPool(_call_hook, size=_THREADS, max_abandoned=_THREADS, name="hooks")
            self._threads.start(asyncio.get_running_loop())
        return self._threads


def _came_from_hook(error: BaseException, num_requests: int) -> bool:
    """Whether the hook's code raised the error; if not, the error is meant to end the task that runs the hook."""
    if isinstance(error, asyncio.CancelledError):
        return _num_cancel_requests() <= num_requests
    return not isinstance(error, KeyboardInterrupt | GeneratorExit)


def _num_cancel_requests() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def _run_coroutine(name: str, coroutine: Coroutine[Any, Any, Any], deadline: Deadline) -> Any:
    is_done, answer = begin_coroutine(coroutine, contextvars.copy_context(), name, deadline)
    return answer if is_done else await answer


def _call_hook(hook: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return hook(*arguments)
