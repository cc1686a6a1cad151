"""Runs plain reward functions in processes: CPU-bound rewards run in parallel, and hung ones can be killed.

Always true: all bookkeeping happens on the loop's thread; blocking work (starting a process, reaping one) happens on
other threads. A cancelled call ends at once for its caller: its process takes no more calls, is replaced at once, and
is killed as soon as its other calls have ended. Children are started fresh, never forked, never import the user's
`__main__`, and never outlive this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rewardflow import clock
from rewardflow.errors import AgentClosed, InvalidInput, RewardLoadError, ServiceError
from rewardflow.observe.redact import redact
from rewardflow.reward.code.context_transfer import pack_context
from rewardflow.reward.code.processes.process_channel import Channel, Child, start_child
from rewardflow.reward.code.processes.process_messages import (
    HANDSHAKE,
    Failure,
    FunctionSource,
    Handshake,
    Reply,
    decode_answer,
    decode_reply,
    dumps,
    open_reply,
    pickle_source,
    unpack_exception,
)
from rewardflow.reward.code.thread_pool import WorkerStatistics

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Callable, Iterable, Mapping

    from rewardflow.reward.code.current_call import Call

logger = logging.getLogger(__name__)

MAX_FAILED_STARTS = 3


@dataclass(slots=True, eq=False)
class _Job:
    number: int
    payload: bytes
    call: Call
    future: asyncio.Future[Reply | Exception]
    process: _Process | None = None


@dataclass(slots=True, eq=False)
class _Process:
    """The loop's record of one child process."""

    popen: subprocess.Popen[bytes]
    channel: Channel
    lifeline: int
    jobs: dict[int, _Job] = field(default_factory=dict)
    num_abandoned: int = 0
    has_answered: bool = False  # it answered the handshake: it has built the reward, or said why it cannot
    is_open: bool = False  # takes calls
    is_ending: bool = False

    def kill(self) -> None:
        """Kills the child and every process it has started."""
        if self.popen.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, signal.SIGKILL)


class ProcessPool:
    """Runs a reward in `processes` children, `threads_per_process` calls at a time in each."""

    def __init__(
        self, source: FunctionSource, *, processes: int, threads_per_process: int, name: str = "reward"
    ) -> None:
        if processes < 1 or threads_per_process < 1:
            raise InvalidInput(
                "processes and threads_per_process must be at least 1, "
                f"got processes={processes}, threads_per_process={threads_per_process}"
            )
        if os.name != "posix":
            raise InvalidInput(f"reward processes need a POSIX system, got {sys.platform}")
        self.on_usable: Callable[[], None] | None = None
        self._handshake = dumps(Handshake(pickle_source(source, name), threads_per_process))
        self._num_wanted = processes
        self._threads = threads_per_process
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        self._all_gone = asyncio.Event()
        self._load_error: str | None = None

        self._processes: set[_Process] = set()  # every child that is not reaped yet
        self._open: list[_Process] = []  # those that take calls
        self._waiting: deque[_Job] = deque()
        self._numbers = itertools.count(HANDSHAKE + 1)
        self._num_spawning = 0
        self._num_failed_starts = 0
        self._num_started = 0
        self._num_replaced = 0
        self._num_killed = 0

    @property
    def num_usable(self) -> int:
        """The number of calls that can run at once, without processes that are still loading.

        The pool calls `on_usable` when the number grows. If the reward cannot be loaded at all, this is the full size,
        because every call then fails at once with the reason.
        """
        if self._load_error is not None:
            return self._num_wanted * self._threads
        return len(self._open) * self._threads

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._spawn(self._num_wanted)

    async def call(self, kwargs: Mapping[str, Any], call: Call, context: contextvars.Context) -> Any:
        """Runs the reward in a process. Cancelling the caller abandons the process and ends the wait at once."""
        if self._loop is None or self._is_closed:
            raise AgentClosed(f"the processes of reward {self._name} are not open")
        if self._load_error is not None:
            raise RewardLoadError(self._load_error)
        job = _Job(next(self._numbers), self._encode(kwargs, call, context), call, self._loop.create_future())
        with clock.hold(self._loop):
            self._waiting.append(job)
            self._assign_jobs()
            try:
                reply = await job.future
            except asyncio.CancelledError:
                self._abandon_job(job)
                raise
        if isinstance(reply, Exception):
            raise reply
        return open_reply(reply, call)

    async def aclose(self, timeout_s: float) -> None:
        """Lets idle processes exit, kills the others, and waits until all are gone, for at most `timeout_s`."""
        if self._loop is None or self._is_closed:
            return
        self._is_closed = True
        message = f"reward {self._name} was closed during the call"
        _fail(self._waiting, AgentClosed, message)
        for process in self._processes:
            is_idle = process.is_open and not process.jobs
            _fail(process.jobs.values(), AgentClosed, message)
            self._end(process, by_force=not is_idle)
        self._check_gone()
        with clock.hold(self._loop):  # children end in real time
            if not await self._wait_until_gone(timeout_s / 2):
                for process in self._processes:
                    self._num_killed += 1
                    process.kill()
                if not await self._wait_until_gone(timeout_s / 2):
                    logger.warning("processes of reward %s did not end within %g s", self._name, timeout_s)

    def statistics(self) -> WorkerStatistics:
        return WorkerStatistics(
            kind="process",
            size=self._num_wanted * self._threads,
            started=self._num_started,
            busy=sum(len(process.jobs) for process in self._processes),
            abandoned=sum(process.num_abandoned for process in self._processes),
            replaced=self._num_replaced,
            killed=self._num_killed,
        )

    # Calls.

    def _encode(self, kwargs: Mapping[str, Any], call: Call, context: contextvars.Context) -> bytes:
        try:
            return dumps((dict(kwargs), call, pack_context(context)))
        except Exception as error:
            raise InvalidInput(f"the arguments of reward {self._name} must be picklable, got {error}") from error

    def _assign_jobs(self) -> None:
        while self._waiting and self._open:
            process = min(self._open, key=lambda process: len(process.jobs))
            if len(process.jobs) >= self._threads:
                return
            job = self._waiting.popleft()
            if job.future.done():
                continue
            job.process = process
            process.jobs[job.number] = job
            process.channel.send(job.number, job.payload)
            job.payload = b""

    def _abandon_job(self, job: _Job) -> None:
        process = job.process
        if process is None:
            with contextlib.suppress(ValueError):
                self._waiting.remove(job)
            return
        if process.is_ending or process.jobs.pop(job.number, None) is None:
            return  # the process was closed or has died, or the reply has already arrived
        process.num_abandoned += 1
        if process.is_open:
            self._open.remove(process)
            process.is_open = False
            self._num_replaced += 1
            self._spawn(1)
        self._kill_if_retired(process)

    def _kill_if_retired(self, process: _Process) -> None:
        if not process.is_open and not process.jobs:
            self._num_killed += 1
            self._end(process)

    def _on_frame(self, process: _Process, number: int, body: bytes) -> None:
        if process.is_ending:
            return  # the process wrote this before it was killed
        try:
            if number == HANDSHAKE and not process.has_answered:
                self._on_answered(process, decode_answer(body))
                return
            reply = decode_reply(body)
            if number not in process.jobs and not process.num_abandoned:
                raise ValueError("it answers no call")
        except ValueError as error:
            self._on_lost(process, f"cannot be read: {error}")
            return
        job = process.jobs.pop(number, None)
        if job is None:
            process.num_abandoned -= 1
        elif not job.future.done():
            job.future.set_result(reply)
        if process.is_open:
            self._assign_jobs()
        else:
            self._kill_if_retired(process)

    # The life of a process, in order.

    def _spawn(self, count: int) -> None:
        assert self._loop is not None
        self._num_spawning += count
        for _ in range(count):
            clock.begin_hold(self._loop)  # until the child has answered, or cannot any more
        self._run_in_thread(self._start_children, count)

    def _on_spawned(self, child: Child) -> None:
        assert self._loop is not None
        self._num_spawning -= 1
        self._num_started += 1
        channel = Channel(self._loop, child.connection)
        process = _Process(child.popen, channel, child.lifeline)
        self._processes.add(process)
        if self._is_closed:
            self._end(process)
            return
        channel.open(functools.partial(self._on_frame, process), functools.partial(self._on_lost, process))
        channel.send(HANDSHAKE, self._handshake)

    def _on_not_spawned(self, count: int, error: Exception | None) -> None:
        assert self._loop is not None
        self._num_spawning -= count
        for _ in range(count):
            clock.end_hold(self._loop)
        if error is not None:
            self._on_failed_start(f"its process could not be started: {error}")
        self._check_gone()

    def _on_answered(self, process: _Process, failure: Failure | None) -> None:
        assert self._loop is not None
        process.has_answered = True
        clock.end_hold(self._loop)
        if failure is not None:
            self._end(process, by_force=False)
            self._on_cannot_load(str(unpack_exception(failure)), failure.traceback_text)
            return
        process.is_open = True
        self._open.append(process)
        self._num_failed_starts = 0
        self._load_error = None
        self._assign_jobs()
        if self.on_usable is not None:
            self.on_usable()

    def _on_failed_start(self, reason: str) -> None:
        self._num_failed_starts += 1
        if self._num_failed_starts < MAX_FAILED_STARTS:
            self._spawn(1)
        else:
            self._on_cannot_load(f"reward {self._name} cannot be loaded: {reason}")

    def _on_cannot_load(self, message: str, details: str = "") -> None:
        """Goes on with the processes that have loaded the reward; without any, fails every call with the reason.

        It does not start more processes, so the pool never retries for ever.
        """
        logger.error(
            "a process of reward %s failed and will not be replaced; %d are left: %s\n%s",
            self._name,
            len(self._open),
            redact(message),
            redact(details),
        )
        if self._open or self._is_closed:
            return
        self._load_error = message
        _fail(self._waiting, RewardLoadError, message)
        self._waiting.clear()
        if self.on_usable is not None:
            self.on_usable()

    def _on_lost(self, process: _Process, bad_message: str) -> None:
        """Handles a process that closed its end, so it is dead or ending, or that sent a bad message."""
        if bad_message:
            text = f"reward process was killed because a message from it {bad_message}"
            logger.error("%s: %s", self._name, redact(text))
            _fail(process.jobs.values(), ServiceError, text)
            self._num_killed += 1
        if process.is_open:
            self._num_replaced += 1
            self._spawn(1)
        self._end(process)

    def _end(self, process: _Process, *, by_force: bool = True) -> None:
        """Ends a process, by force or by closing our end so that it exits, and starts to reap it."""
        assert self._loop is not None
        if process.is_ending:
            return
        process.is_ending = True
        process.num_abandoned = 0
        if process.is_open:
            self._open.remove(process)
            process.is_open = False
        if not process.has_answered:
            clock.end_hold(self._loop)
        if by_force:
            process.kill()
        process.channel.close()
        self._run_in_thread(self._reap, process)

    def _on_reaped(self, process: _Process, exit_code: int) -> None:
        self._processes.discard(process)
        _fail(process.jobs.values(), ServiceError, f"reward process died with exit code {exit_code}")
        if not process.has_answered and not self._is_closed:
            self._on_failed_start(f"its process died with exit code {exit_code} while loading")
        self._check_gone()

    def _check_gone(self) -> None:
        if self._is_closed and not self._processes and not self._num_spawning:
            self._all_gone.set()

    async def _wait_until_gone(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._all_gone.wait()
        except TimeoutError:
            return False

    # Off the loop's thread.

    def _run_in_thread(self, target: Callable[..., None], *arguments: Any) -> None:
        threading.Thread(target=target, args=arguments, name=f"{self._name}-keeper", daemon=True).start()

    def _call_on_loop(self, handle: Callable[..., None], *arguments: Any) -> bool:
        """Schedules a callback on the loop; returns False if the loop is closed."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(handle, *arguments)
        except RuntimeError:
            return False
        return True

    def _start_children(self, count: int) -> None:
        for num_done in range(count):
            if self._is_closed:
                self._call_on_loop(self._on_not_spawned, count - num_done, None)
                return
            try:
                child = start_child()
            except OSError as error:
                self._call_on_loop(self._on_not_spawned, 1, error)
                continue
            if not self._call_on_loop(self._on_spawned, child):
                child.connection.close()
                os.close(child.lifeline)
                child.popen.wait()

    def _reap(self, process: _Process) -> None:
        exit_code = process.popen.wait()
        os.close(process.lifeline)
        self._call_on_loop(self._on_reaped, process, exit_code)


def _fail(jobs: Iterable[_Job], error: type[Exception], message: str) -> None:
    for job in jobs:
        if not job.future.done():
            job.future.set_result(error(message))
