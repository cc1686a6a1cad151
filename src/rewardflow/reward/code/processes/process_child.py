"""Runs inside a reward process: reads calls from the parent, runs them, and sends replies.

Always true: every call that is read gets exactly one reply, unless the function ends the process; the main thread runs
calls, too, so that code which needs it (`signal.alarm`) works when a process has one thread; the process never outlives
its parent.

This module imports little, because every new process loads it.
"""

from __future__ import annotations

import contextvars
import io
import os
import pickle
import queue
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any, BinaryIO

from rewardflow.errors import InvalidInput, RewardLoadError
from rewardflow.reward.code.context_transfer import as_ordinary_exception, run_call, unpack_context
from rewardflow.reward.code.current_call import Call
from rewardflow.reward.code.processes.process_messages import (
    HANDSHAKE,
    HEADER,
    Failure,
    Handshake,
    Reply,
    encode_answer,
    encode_reply,
    frame,
    pack_exception,
    type_name,
)
from rewardflow.reward.code.user_frames import Origin

if TYPE_CHECKING:
    from collections.abc import Callable

_REDACTOR = "rewardflow.observe.redact"
EXIT_GRACE_S = 5.0  # for `atexit` handlers and buffers, once the parent has closed its end


class _Child:
    """The child's side of the connection: one thread reads, others run calls, and a lock guards writing."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._incoming: BinaryIO = connection.makefile("rb")
        self._inbox: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._write_lock = threading.Lock()

    def run(self) -> None:
        first = self._read_frame()
        if first is None:
            return
        handshake: Handshake = pickle.loads(first[1])
        threading.Thread(target=self._read, args=(handshake.num_threads,), name="reward-reader", daemon=True).start()
        try:
            function = pickle.loads(handshake.source).build()
        except BaseException as error:
            self._write(HANDSHAKE, encode_answer(_without_secrets(pack_exception(_load_error(error)))))
            return
        base = contextvars.copy_context()  # every call sees the variables that building the reward has set
        for number in range(1, handshake.num_threads):
            thread = threading.Thread(target=self._work, args=(function, base), name=f"reward-{number}", daemon=True)
            thread.start()
        self._write(HANDSHAKE, encode_answer(None))
        self._work(function, base)

    def _work(self, function: Callable[..., Any], base: contextvars.Context) -> None:
        while (item := self._inbox.get()) is not None:
            number, body = item
            self._write(number, _answer(function, body, base))
            del item, body  # an idle process must not keep a rollout alive

    def _read(self, num_threads: int) -> None:
        """Queues calls until the parent closes its end; then ends the process, by force if it does not end in time."""
        while (item := self._read_frame()) is not None:
            self._inbox.put(item)
        timer = threading.Timer(EXIT_GRACE_S, _kill_own_group)
        timer.daemon = True
        timer.start()
        for _ in range(num_threads):
            self._inbox.put(None)

    def _read_frame(self) -> tuple[int, bytes] | None:
        try:
            header = self._incoming.read(HEADER.size)
            if len(header) < HEADER.size:
                return None
            length, number = HEADER.unpack(header)
            body = self._incoming.read(length)
        except OSError:
            return None
        return (number, body) if len(body) == length else None

    def _write(self, number: int, body: bytes) -> None:
        try:
            with self._write_lock:
                self._connection.sendall(frame(number, body))
        except OSError:
            pass  # the parent is gone, and the reader thread sees that, too


def _answer(function: Callable[..., Any], body: bytes, base: contextvars.Context) -> bytes:
    try:
        kwargs, call, packed = pickle.loads(body)
    except Exception as error:
        refused = InvalidInput(f"the arguments of a reward must be readable in its process, got {error!r}")
        return _reply(None, pack_exception(refused), Call(()))
    value, raised = run_call(function, kwargs, call, unpack_context(packed, base))
    if raised is not None:
        return _reply(None, _without_secrets(pack_exception(raised)), call)
    redactor = sys.modules.get(_REDACTOR)
    try:
        return _reply(value if redactor is None else redactor.hide_in_result(value), None, call)
    except Exception as error:
        unsendable = TypeError(
            f"the result of a reward in a process must be plain data, got a {type_name(value)}: {error}"
        )
        return _reply(None, pack_exception(unsendable), call)


def _reply(value: Any, failure: Failure | None, call: Call) -> bytes:
    told = (float(call.cost_usd), int(call.tokens), call.is_cost_known, call.headers, call.num_unpriced)
    return encode_reply(Reply(value, failure, *told, int(call.cached_tokens), float(call.cache_saved_usd)))


def _without_secrets(failure: Failure) -> Failure:
    """Removes the secrets that only this process knows. Without the redactor nobody has registered one here."""
    redactor = sys.modules.get(_REDACTOR)
    if redactor is None:
        return failure
    hide = redactor.hide_in_record
    return Failure(
        failure.classes,
        hide(failure.arguments),
        hide(failure.attributes),
        hide(failure.summary),
        hide(failure.traceback_text),
        Origin(hide(failure.origin.place), hide(failure.origin.trace)),
    )


def _load_error(error: BaseException) -> RewardLoadError:
    if isinstance(error, RewardLoadError):
        return error
    wrapped = RewardLoadError(f"the reward could not be built in its process: {type_name(error)}: {error}")
    wrapped.__cause__ = as_ordinary_exception(error)
    return wrapped


def _die_with_parent(lifeline: int) -> None:
    """Makes the kernel kill this process and its children when the parent's end of this pipe closes.

    The reader thread also sees the parent go, but it cannot run while the user's code is in C and holds the interpreter
    lock, as a runaway regular expression does. Only Linux lets a process choose the signal; other systems rely on the
    reader thread.
    """
    import fcntl

    if not hasattr(fcntl, "F_SETSIG"):
        return
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    try:
        os.read(lifeline, 1)
    except BlockingIOError:
        return
    _kill_own_group()  # the parent was gone before we set the signal


def _kill_own_group() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main(connection: int, lifeline: int) -> None:
    """Runs the child; the process must be the leader of its own group."""
    for descriptor in (connection, lifeline):
        os.set_inheritable(descriptor, False)
    _die_with_parent(lifeline)
    del sys.argv[1:]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # writes whole lines, and loses none when we are killed
    own = socket.socket(fileno=connection)
    os.register_at_fork(after_in_child=own.close)  # otherwise a grandchild would keep the connection open after us
    _Child(own).run()
