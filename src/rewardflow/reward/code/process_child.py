"""Runs inside a reward process, and defines the frames that the process and its parent exchange.

Always true: every call that is read gets exactly one reply, unless the function ends the process; the main thread runs
calls, too, so that code which needs it (`signal.alarm`) works when a process has one thread; the process never outlives
its parent.

A frame is a header (body length, call number) and a pickled body. Number 0 is the parent's handshake and the child's
answer to it; other numbers are calls and their replies. This module imports little, because every new process loads it.
"""

from __future__ import annotations

import contextvars
import copyreg
import io
import os
import pickle
import queue
import signal
import socket
import struct
import sys
import threading
import traceback
from collections import ChainMap
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from rewardflow.errors import InvalidInput, RewardLoadError
from rewardflow.reward.code.context_transfer import as_ordinary_exception, run_call, unpack_context
from rewardflow.reward.code.current_call import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HEADER = struct.Struct("!QQ")
HANDSHAKE = 0
EXIT_GRACE_S = 5.0  # for `atexit` handlers and buffers, once the parent has closed its end


class FunctionSource(Protocol):
    """Builds the reward function in the process; must be picklable."""

    def build(self) -> Callable[..., Any]: ...


@dataclass(frozen=True, slots=True)
class Handshake:
    source: bytes
    num_threads: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A packed exception: as itself, as the nearest base class that the parent can read, or as text."""

    candidates: tuple[bytes, ...]
    summary: str
    traceback_text: str


@dataclass(frozen=True, slots=True)
class Reply:
    """The result or the failure of a call, with the usage and headers it reported."""

    value: bytes
    type_name: str
    failure: Failure | None
    cost_usd: float
    tokens: int
    headers: dict[str, str] | None


def frame(number: int, body: bytes) -> bytes:
    return HEADER.pack(len(body), number) + body


def dumps(value: object) -> bytes:
    buffer = io.BytesIO()
    RecordPickler(buffer).dump(value)
    return buffer.getvalue()


def type_name(value: object) -> str:
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def pack_exception(error: Exception) -> Failure:
    """Packs an exception so that as much of it as possible arrives.

    Many exceptions of HTTP clients pickle but do not unpickle (their constructors need more than `args`), and the
    parent may lack the classes of the user's file. The nearest base class with the same attributes still says what
    happened: a status, a time to wait.
    """
    kept = {name: value for name, value in vars(error).items() if _pickle_if_readable(value)}
    relatives = [cls for cls in type(error).__mro__ if issubclass(cls, Exception) and cls is not Exception]
    candidates = [
        _pickle_if_readable(error),
        *(_pickle_if_readable(_ExceptionState(cls, error.args, kept)) for cls in relatives),
    ]
    return Failure(
        candidates=tuple(filter(None, candidates)),
        summary=f"{type_name(error)}: {error}",
        traceback_text="".join(traceback.format_exception(error)),
    )


def unpack_exception(failure: Failure) -> Exception:
    """Returns the exception, as close to the original as this process can read it."""
    error: Exception = RuntimeError(failure.summary)
    for candidate in failure.candidates:
        try:
            error = pickle.loads(candidate)
        except Exception:
            continue
        break
    error.add_note(f"In the reward process:\n{failure.traceback_text}")
    return error


def _reduce_read_only(mapping: Mapping[str, Any]) -> tuple[Any, ...]:
    return _read_only, (dict(mapping),)


_REDUCERS: Any = ChainMap({MappingProxyType: _reduce_read_only}, copyreg.dispatch_table)


class RecordPickler(pickle.Pickler):
    """A pickler that also accepts the read-only mappings in our records, which pickle refuses."""

    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer, pickle.HIGHEST_PROTOCOL)
        self.dispatch_table = _REDUCERS


def _read_only(mapping: dict[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(mapping)


@dataclass(frozen=True, slots=True)
class _ExceptionState:
    """The state of an exception; unpickles to an instance of `cls` without calling its constructor."""

    cls: type[Exception]
    arguments: tuple[Any, ...]
    attributes: dict[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.cls, self.arguments, self.attributes)


def _rebuild(cls: type[Exception], arguments: tuple[Any, ...], attributes: dict[str, Any]) -> Exception:
    error = cls.__new__(cls, *arguments)
    error.args = arguments
    vars(error).update(attributes)
    return error


def _pickle_if_readable(value: object) -> bytes | None:
    """Returns the pickle of a value, or None if it cannot be unpickled or the copy does not work."""
    try:
        body = dumps(value)
        copy = pickle.loads(body)
        getattr(copy, "response", None)
        str(copy)
    except Exception:
        return None
    return body


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
            self._write(HANDSHAKE, dumps(pack_exception(_load_error(error))))
            return
        base = contextvars.copy_context()  # every call sees the variables that building the reward has set
        for number in range(1, handshake.num_threads):
            thread = threading.Thread(target=self._work, args=(function, base), name=f"reward-{number}", daemon=True)
            thread.start()
        self._write(HANDSHAKE, dumps(None))
        self._work(function, base)

    def _work(self, function: Callable[..., Any], base: contextvars.Context) -> None:
        while (item := self._inbox.get()) is not None:
            number, body = item
            self._write(number, dumps(_answer(function, body, base)))
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


def _answer(function: Callable[..., Any], body: bytes, base: contextvars.Context) -> Reply:
    try:
        kwargs, call, packed = pickle.loads(body)
    except Exception as error:
        refused = InvalidInput(f"the arguments of a reward must be readable in its process, got {error!r}")
        return _reply(b"", "", pack_exception(refused), Call(()))
    value, raised = run_call(function, kwargs, call, unpack_context(packed, base))
    if raised is not None:
        return _reply(b"", "", pack_exception(raised), call)
    try:
        return _reply(dumps(value), type_name(value), None, call)
    except Exception as error:
        unsendable = TypeError(f"the result of a reward must be picklable, got a {type_name(value)}: {error}")
        return _reply(b"", "", pack_exception(unsendable), call)


def _reply(value: bytes, type_name: str, failure: Failure | None, call: Call) -> Reply:
    return Reply(value, type_name, failure, call.cost_usd, call.tokens, call.headers)


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
