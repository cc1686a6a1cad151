"""Runs a function that may hold the interpreter lock for ever, in processes that can be killed and are kept warm.

Always true: a call that is given up ends its own process and no other call; a process that still loads the function
goes on, for the next call. A process runs one call at a time, and the next call uses it again. A call whose process
died for another reason runs once more in another process. Processes start at the first call, and never outlive this
process.

A regular expression and a power of whole numbers run in C and release the lock only when they end. In a thread, one of
them stops the event loop and every other call. A process is no sandbox: it has all rights of this one.

A call outside an agent runs in the caller's own thread, where Ctrl-C ends it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from rewardflow.errors import ServiceError
from rewardflow.reward.code.abandonment import Abandonment, current_abandonment
from rewardflow.reward.code.current_call import Call
from rewardflow.reward.code.processes.plain_data import MAX_FRAME_BYTES
from rewardflow.reward.code.processes.process_channel import start_child
from rewardflow.reward.code.processes.process_messages import (
    HANDSHAKE,
    HEADER,
    Failure,
    FunctionSource,
    Handshake,
    Reply,
    decode_answer,
    decode_reply,
    dumps,
    frame,
    open_reply,
    pickle_source,
    unpack_exception,
)
from rewardflow.reward.code.thread_pool import WorkerStatistics

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

MAX_AT_ONCE = 8  # calls of one reward: each may need a process of its own
_MAX_PROCESSES = 4 * MAX_AT_ONCE  # several rewards may use the same rule
_SLOW_S = 0.1  # a call that takes longer may be stuck, so waiting calls get a new process
_CHUNK_BYTES = 64 * 1024


class CallAbandoned(Exception):
    """Nobody waits for the call any more, and its thread pool discards this exception."""


class ProcessLost(Exception):
    """The process ended, or sent what cannot be read."""


class WarmProcess:
    """One child process. Its methods block the calling thread, but not the interpreter."""

    def __init__(self) -> None:
        self._child = start_child()
        self._next_number = HANDSHAKE
        self.slow_at_s: float | None = None  # when its call counts as slow; None while it loads the function

    def load(self, source: bytes) -> Failure | None:
        """Builds the function in the process; returns why that failed, or None."""
        return self._exchange(dumps(Handshake(source, 1)), decode_answer)

    def ask(self, body: bytes) -> Reply:
        return self._exchange(body, decode_reply)

    def _exchange(self, body: bytes, decode: Callable[[bytes], T]) -> T:
        """Sends one message and returns the answer; raises `ProcessLost` if there is none."""
        number, self._next_number = self._next_number, self._next_number + 1
        try:
            self._child.connection.sendall(frame(number, body))
            return decode(self._receive(number))
        except OSError as error:
            raise ProcessLost("died") from error
        except ValueError as error:
            raise ProcessLost(f"sent an answer that cannot be read: {error}") from error

    def _receive(self, number: int) -> bytes:
        """Reads one frame. It asks for more than the header, because most frames then arrive in one piece."""
        received = bytearray()
        end = HEADER.size
        while len(received) < end:
            chunk = self._child.connection.recv(_CHUNK_BYTES)
            if not chunk:
                raise ProcessLost("died")
            received += chunk
            if len(received) >= HEADER.size:
                length, answered = HEADER.unpack_from(received)
                end = HEADER.size + length
                if length > MAX_FRAME_BYTES or answered != number or len(received) > end:
                    raise ValueError(f"{length} bytes for call {answered}, and {number} was asked")
        return bytes(received[HEADER.size :])

    def kill(self) -> None:
        """Kills the process and its children; any thread may call this, and it does not wait."""
        if self._child.popen.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.popen.pid, signal.SIGKILL)

    def end(self) -> int:
        """Kills the process, waits for its end, and returns its exit code."""
        self.kill()
        exit_code = self._child.popen.wait()
        self.forget()
        return exit_code

    def forget(self) -> None:
        self._child.connection.close()
        with contextlib.suppress(OSError):
            os.close(self._child.lifeline)


class WarmProcesses:
    """The processes of one function, for all threads. Replies must be plain data.

    A few calls share as many processes as there are processors. When a call is slow, a waiting one gets a new process:
    calls that are stuck must not hold up the others until their timeout.
    """

    def __init__(
        self, source: FunctionSource, *, name: str, at_once: int | None = None, at_most: int = _MAX_PROCESSES
    ) -> None:
        self._source = source
        self._name = name
        self._at_most = at_most
        self._at_once = at_once or min(os.cpu_count() or 1, MAX_AT_ONCE)
        self._changed = threading.Condition()
        self._idle: list[WarmProcess] = []  # a stack: the process used last is the warmest
        self._busy: set[WarmProcess] = set()
        self._num_starting = 0
        self._num_started = 0
        self._num_killed = 0
        _all.add(self)

    def call(self, **arguments: Any) -> Any:
        """Calls the function in a process; in this thread, if nobody could give the call up."""
        abandonment = current_abandonment()
        if abandonment is None:
            return self._source.build()(**arguments)
        call = Call(())
        body = dumps((arguments, call, b""))
        problem = ""
        for _ in range(2):
            try:
                return open_reply(self._call_once(body, abandonment), call)
            except ProcessLost as lost:
                problem = str(lost)
            if abandonment.is_abandoned:
                raise CallAbandoned
        raise ServiceError(f"the process of {self._name} {problem}, twice for the same call")

    def end_idle(self) -> None:
        """Ends the processes that run no call. A later call starts new ones."""
        with self._changed:
            idle, self._idle = self._idle, []
        for process in idle:
            process.kill()
        for process in idle:
            process.end()

    def statistics(self) -> WorkerStatistics:
        with self._changed:
            return WorkerStatistics(
                kind="process",
                size=self._at_once,
                started=self._num_started,
                busy=len(self._busy),
                abandoned=0,
                replaced=0,
                killed=self._num_killed,
            )

    # -- private --

    def _call_once(self, body: bytes, abandonment: Abandonment) -> Reply:
        process = self._wait_for_process(abandonment)
        is_reusable = False
        try:
            if process.slow_at_s is None:
                # Not killed if the call is given up: where loading takes longer than a timeout, no call would ever run.
                self._load(process)
                process.slow_at_s = time.monotonic() + _SLOW_S
                self._wake_all()  # waiting calls did not know until when to wait
                if abandonment.is_abandoned:
                    is_reusable = True
                    raise CallAbandoned
            with abandonment.stopped_by(process.kill, self._name):
                process.slow_at_s = time.monotonic() + _SLOW_S
                reply = process.ask(body)
            is_reusable = not abandonment.is_abandoned
        finally:
            self._take_back(process, is_reusable=is_reusable)
        return reply

    def _wait_for_process(self, abandonment: Abandonment) -> WarmProcess:
        with abandonment.stopped_by(self._wake_all, self._name), self._changed:
            while not abandonment.is_abandoned and not self._idle and not self._may_start():
                self._changed.wait(self._slow_in_s())
            if abandonment.is_abandoned:
                raise CallAbandoned
            if self._idle:
                process = self._idle.pop()
                self._busy.add(process)
                return process
            self._num_starting += 1
        try:
            process = WarmProcess()
        except OSError as error:
            raise ServiceError(f"no process could be started for {self._name}: {error}") from error
        finally:
            with self._changed:
                self._num_starting -= 1
                self._changed.notify_all()
        with self._changed:
            self._num_started += 1
            self._busy.add(process)
        return process

    def _may_start(self) -> bool:
        if self._num_starting + len(self._busy) + len(self._idle) >= self._at_most:
            return False
        now = time.monotonic()
        num_quick = sum(process.slow_at_s is None or process.slow_at_s > now for process in self._busy)
        return self._num_starting + num_quick < self._at_once

    def _slow_in_s(self) -> float | None:
        """Returns how long until the next busy process counts as slow; None if none will."""
        now = time.monotonic()
        return min((one.slow_at_s - now for one in self._busy if one.slow_at_s and one.slow_at_s > now), default=None)

    def _load(self, process: WarmProcess) -> None:
        failure = process.load(pickle_source(self._source, self._name))
        if failure is not None:
            raise unpack_exception(failure)

    def _take_back(self, process: WarmProcess, *, is_reusable: bool) -> None:
        if not is_reusable:
            process.end()
        with self._changed:
            self._busy.discard(process)
            if is_reusable:
                self._idle.append(process)
            else:
                self._num_killed += 1
            self._changed.notify()

    def _wake_all(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _forget_all(self) -> None:
        """Runs in a forked child of this process: the processes belong to the parent."""
        for process in (*self._idle, *self._busy):
            process.forget()
        self._changed = threading.Condition()
        self._idle, self._busy, self._num_starting = [], set(), 0


_all: weakref.WeakSet[WarmProcesses] = weakref.WeakSet()


def _forget_in_fork() -> None:
    for processes in list(_all):
        processes._forget_all()


os.register_at_fork(after_in_child=_forget_in_fork)
