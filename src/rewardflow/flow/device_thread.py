"""Runs computations on one thread, so that the event loop never blocks on a device.

Always true: computations run one after another, in order; the caller gets the result or the error; a cancelled call
returns only after its computation has ended, so nothing computes unnoticed.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from types import TracebackType
from typing import Generic, Self, TypeVar

from rewardflow.clock import hold
from rewardflow.errors import InvalidInput

T = TypeVar("T")


class DeviceThread:
    """`with DeviceThread("trainer") as thread: await thread.run(compute)`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._work, name=f"rewardflow-{self.name}", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Ends the thread. Nothing can be running by now, because every caller has waited for its computation."""
        self._jobs.put(None)
        if self._thread is not None:
            self._thread.join()

    async def run(self, compute: Callable[[], T]) -> T:
        """Computes on the thread. A cancellation takes effect only after the computation has ended."""
        loop = asyncio.get_running_loop()
        with hold(loop):
            return await _outlast(self._begin(loop, compute))

    async def stream(self, compute: Callable[[Emitter[T]], None]) -> AsyncGenerator[T]:
        """Yields what `compute` emits. `compute` should end soon after `emitter.is_stopped`. Close the stream."""
        loop = asyncio.get_running_loop()
        emitter: Emitter[T] = Emitter(loop)
        with hold(loop):
            ended = self._begin(loop, lambda: compute(emitter))
            ended.add_done_callback(lambda _: emitter.results.put_nowait(None))
            try:
                while (results := await emitter.results.get()) is not None:
                    for result in results:
                        yield result
            except BaseException:  # the caller left and no longer needs the outcome of the computation
                emitter.is_stopped = True
                await _wait_to_the_end(ended)
                raise
            ended.result()

    def _begin(self, loop: asyncio.AbstractEventLoop, compute: Callable[[], T]) -> asyncio.Future[T]:
        if self._thread is None or not self._thread.is_alive():
            raise InvalidInput(f"the thread {self.name!r} must be entered before it computes")
        ended: asyncio.Future[T] = loop.create_future()

        def job() -> None:
            try:
                result = compute()
            except (StopIteration, asyncio.CancelledError) as error:  # both have another meaning to an awaiting task
                _call_soon(loop, ended.set_exception, _wrapped(error))
            except BaseException as error:
                _call_soon(loop, ended.set_exception, error)
            else:
                _call_soon(loop, ended.set_result, result)

        self._jobs.put(job)
        return ended

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


class Emitter(Generic[T]):
    """Sends results from a running computation to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_stopped = False  # the caller needs no more results
        self.results: asyncio.Queue[tuple[T, ...] | None] = asyncio.Queue()
        self._loop = loop

    def emit(self, *results: T) -> None:
        """Sends results in one batch: waking the loop costs more than most results."""
        _call_soon(self._loop, self.results.put_nowait, results)


async def _outlast(ended: asyncio.Future[T]) -> T:
    """Waits for the end, and raises a cancellation only then."""
    if await _wait_to_the_end(ended):
        raise asyncio.CancelledError
    return ended.result()


async def _wait_to_the_end(ended: asyncio.Future[T]) -> bool:
    """Waits for the end. Returns whether the wait was cancelled meanwhile."""
    is_cancelled = False
    while not ended.done():
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError:
            is_cancelled = True
    ended.exception()  # marks an error as retrieved, so that asyncio does not log it
    return is_cancelled


def _wrapped(error: BaseException) -> RuntimeError:
    wrapped = RuntimeError(f"the computation raised {type(error).__name__}")
    wrapped.__cause__ = error
    return wrapped


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: object) -> None:
    with suppress(RuntimeError):  # the loop was closed meanwhile
        loop.call_soon_threadsafe(callback, *args)
