"""Runs plain (blocking) reward functions in threads, and abandons threads that hang.

Always true: all bookkeeping happens on the loop's thread; a worker thread uses only its inbox and the queue of
callbacks. A cancelled call ends at once for its caller: its thread counts as abandoned and is replaced, up to
`max_abandoned` threads; its later result is discarded. A process that the thread waits for is killed
(`abandonment.py`).

`concurrent.futures` cannot do this: it neither abandons a thread nor lets the interpreter exit while one hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rewardflow import clock
from rewardflow.errors import AgentClosed, AgentError, InvalidInput
from rewardflow.reward.code.abandonment import Abandonment, in_call
from rewardflow.reward.code.context_transfer import Outcome, run_call

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Callable, Mapping

    from rewardflow.reward.code.current_call import Call

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatistics:
    """The counts of one pool of threads or processes.

    `size` is the number of calls that can run at once when none is stuck; `busy` and `abandoned` count the calls that
    run or are stuck now; the other counts only grow.
    """

    kind: Literal["thread", "process"]
    size: int
    started: int
    busy: int
    abandoned: int
    replaced: int
    killed: int


@dataclass(slots=True, eq=False)
class _Job:
    kwargs: Mapping[str, Any]
    call: Call
    context: contextvars.Context
    future: asyncio.Future[Outcome]
    worker: _Worker | None = None
    abandonment: Abandonment = field(default_factory=Abandonment)


@dataclass(slots=True, eq=False)
class _Worker:
    """The loop's record of one thread."""

    inbox: queue.SimpleQueue[_Job | None] = field(default_factory=queue.SimpleQueue)
    job: _Job | None = None
    is_abandoned: bool = False


class ThreadPool:
    """Runs one function in up to `size` daemon threads."""

    def __init__(self, function: Callable[..., Any], *, size: int, max_abandoned: int, name: str = "reward") -> None:
        if size < 1 or max_abandoned < 0:
            raise InvalidInput(
                f"size must be at least 1 and max_abandoned at least 0, got size={size}, max_abandoned={max_abandoned}"
            )
        self.on_usable: Callable[[], None] | None = None
        self._function = function
        self._size = size
        self._max_abandoned = max_abandoned
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        self._ended = asyncio.Event()

        self._idle: list[_Worker] = []  # a stack: the thread used last is the warmest
        self._busy: set[_Worker] = set()
        self._waiting: deque[_Job] = deque()
        self._num_usable = size
        self._num_abandoned = 0
        self._num_replaced = 0
        self._num_started = 0
        self._num_alive = 0  # including the starter thread

        # The only state that threads share with the loop: requests to start threads, and callbacks for the loop.
        self._start_requests: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._callbacks: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._is_wake_pending = False

    @property
    def num_usable(self) -> int:
        """The number of calls that can run at once; includes threads that are starting, but not stuck ones."""
        return self._num_usable

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts the threads from a separate starter thread: on the loop, a thousand would block it for seconds."""
        self._loop = loop
        self._num_alive = 1
        self._start_requests.put(self._size)
        threading.Thread(target=self._run_starter, name=f"{self._name}-starter", daemon=True).start()

    async def call(self, kwargs: Mapping[str, Any], call: Call, context: contextvars.Context) -> Any:
        """Runs the function in a thread. Cancelling the caller abandons the thread and ends the wait at once."""
        if self._loop is None or self._is_closed:
            raise AgentClosed(f"the threads of reward {self._name} are not open")
        if self._num_usable == 0 and self._num_abandoned == 0:
            raise AgentError(f"no thread could be started for reward {self._name}")
        job = _Job(kwargs, call, context, self._loop.create_future())
        with clock.hold(self._loop):
            self._waiting.append(job)
            self._assign_jobs()
            try:
                value, error = await job.future
            except asyncio.CancelledError:
                if stopped := self._abandon_job(job):
                    raise asyncio.CancelledError(stopped) from None  # a deadline names it in its TimeoutError
                raise
        if error is not None:
            raise error
        return value

    async def aclose(self, timeout_s: float) -> None:
        """Fails the remaining calls and ends all threads that are not stuck; does not wait for stuck ones."""
        if self._loop is None or self._is_closed:
            return
        self._is_closed = True
        self._start_requests.put(None)
        for job in (*self._waiting, *(worker.job for worker in self._busy)):
            if job is not None and not job.future.done():
                job.future.set_result((None, AgentClosed(f"reward {self._name} was closed during the call")))
        self._waiting.clear()
        for worker in self._idle:
            worker.inbox.put(None)
        for worker in self._busy:
            worker.is_abandoned = True
            if worker.job is not None:
                worker.job.abandonment.abandon()
        self._num_abandoned += len(self._busy)
        self._busy.clear()
        self._check_ended()
        with clock.hold(self._loop):  # the threads end by themselves and soon, but in real time
            try:
                async with asyncio.timeout(timeout_s):
                    await self._ended.wait()
            except TimeoutError:
                logger.warning("threads of reward %s did not end within %g s", self._name, timeout_s)

    def statistics(self) -> WorkerStatistics:
        return WorkerStatistics(
            kind="thread",
            size=self._size,
            started=self._num_started,
            busy=len(self._busy),
            abandoned=self._num_abandoned,
            replaced=self._num_replaced,
            killed=0,
        )

    # On the loop's thread.

    def _assign_jobs(self) -> None:
        while self._waiting and self._idle:
            job = self._waiting.popleft()
            if job.future.done():
                continue
            worker = self._idle.pop()
            job.worker, worker.job = worker, job
            self._busy.add(worker)
            worker.inbox.put(job)

    def _abandon_job(self, job: _Job) -> str:
        """Gives the job and its thread up; returns the name of what was killed for that, or ""."""
        worker = job.worker
        if worker is None:
            with contextlib.suppress(ValueError):
                self._waiting.remove(job)
            return ""
        if worker.job is not job or worker.is_abandoned:
            return ""  # its result has already arrived, or the pool was closed
        worker.is_abandoned, worker.job = True, None
        self._busy.discard(worker)
        if self._num_abandoned < self._max_abandoned:
            self._num_replaced += 1
            self._start_requests.put(1)
        else:
            self._num_usable -= 1
            logger.warning(
                "%d threads of reward %s are stuck, the most that are replaced; %d of %d are usable",
                self._num_abandoned + 1, self._name, self._num_usable, self._size,
            )  # fmt: skip
        self._num_abandoned += 1
        return job.abandonment.abandon()

    def _on_started(self, worker: _Worker) -> None:
        self._num_started += 1
        self._num_alive += 1
        if self._is_closed:
            worker.inbox.put(None)
            return
        self._idle.append(worker)
        self._assign_jobs()

    def _on_start_failed(self, num_missing: int, error: Exception) -> None:
        self._num_usable -= num_missing
        logger.error("%d threads of reward %s could not be started: %s", num_missing, self._name, error)
        if self._num_usable == 0 and self._num_abandoned == 0:
            for job in self._waiting:
                if not job.future.done():  # a cancelled call stays in the queue until its caller runs again
                    job.future.set_result((None, AgentError(f"no thread could be started for reward {self._name}")))
            self._waiting.clear()

    def _on_finished(self, worker: _Worker, outcome: Outcome) -> None:
        job, worker.job = worker.job, None
        if worker.is_abandoned:
            self._on_recovered(worker)
            return
        self._busy.discard(worker)
        self._idle.append(worker)
        if job is not None and not job.future.done():
            job.future.set_result(outcome)
        self._assign_jobs()

    def _on_recovered(self, worker: _Worker) -> None:
        """Handles a stuck thread that returned: it takes the place of a thread that was not replaced, or ends."""
        self._num_abandoned -= 1
        if self._is_closed or self._num_usable == self._size:
            worker.inbox.put(None)
            return
        worker.is_abandoned = False
        self._num_usable += 1
        self._idle.append(worker)
        self._assign_jobs()
        if self.on_usable is not None:
            self.on_usable()

    def _on_ended(self) -> None:
        self._num_alive -= 1
        self._check_ended()

    def _check_ended(self) -> None:
        if self._is_closed and self._num_alive == self._num_abandoned:
            self._ended.set()

    def _run_callbacks(self) -> None:
        self._is_wake_pending = False  # first, so that a callback added from now on wakes the loop again
        while self._callbacks:
            handle, arguments = self._callbacks.popleft()
            handle(*arguments)

    # On other threads.

    def _call_on_loop(self, handle: Callable[..., None], *arguments: Any) -> None:
        """Schedules a callback on the loop. Batches callbacks: one wake-up each is too slow with a thousand threads."""
        self._callbacks.append((handle, arguments))
        if not self._is_wake_pending and self._loop is not None:
            self._is_wake_pending = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits for this callback
                self._loop.call_soon_threadsafe(self._run_callbacks)

    def _run_starter(self) -> None:
        number = 0
        while (num_requested := self._start_requests.get()) is not None:
            for num_done in range(num_requested):
                if self._is_closed:
                    break
                worker = _Worker()
                name = f"{self._name}-{number}"
                try:
                    threading.Thread(target=self._run_worker, args=(worker,), name=name, daemon=True).start()
                except RuntimeError as error:  # the system allows no more threads
                    self._call_on_loop(self._on_start_failed, num_requested - num_done, error)
                    break
                number += 1
                self._call_on_loop(self._on_started, worker)
        self._call_on_loop(self._on_ended)

    def _run_worker(self, worker: _Worker) -> None:
        while (job := worker.inbox.get()) is not None:
            with in_call(job.abandonment):
                outcome = run_call(self._function, job.kwargs, job.call, job.context)
            self._call_on_loop(self._on_finished, worker, outcome)
            del job, outcome  # an idle thread must not keep a rollout alive
            if self._is_closed:
                break  # the loop may be closed by now, and could not tell this thread to end
        self._call_on_loop(self._on_ended)
