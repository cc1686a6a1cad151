"""Defines the messages between a reward process and its parent, and turns them into bytes and back.

Always true: an exception arrives as itself, as its nearest readable base class, or as text; a record with read-only
mappings arrives unchanged.

A frame is a header (body length, call number) and a pickled body. Number 0 is the parent's handshake and the child's
answer to it; other numbers are calls and their replies. This module imports little, because every new process loads it.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import struct
import traceback
from collections import ChainMap
from dataclasses import dataclass
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from rewardflow.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rewardflow.reward.code.current_call import Call

HEADER = struct.Struct("!QQ")
HANDSHAKE = 0


class FunctionSource(Protocol):
    """Builds the reward function in the process; must be picklable."""

    def build(self) -> Callable[..., Any]: ...


@dataclass(frozen=True, slots=True)
class Handshake:
    """The parent's first message: the pickled source of the function, and how many threads run it."""

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
    is_cost_known: bool
    headers: dict[str, str] | None


# -- frames and pickles --


def frame(number: int, body: bytes) -> bytes:
    return HEADER.pack(len(body), number) + body


def dumps(value: object) -> bytes:
    buffer = io.BytesIO()
    RecordPickler(buffer).dump(value)
    return buffer.getvalue()


def type_name(value: object) -> str:
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


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


class _SourcePickler(RecordPickler):
    """A pickler that refuses objects of `__main__`, because the child does not import it."""

    def persistent_id(self, value: Any) -> None:
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            raise pickle.PicklingError(f"{value.__qualname__} is defined in __main__")


def pickle_source(source: FunctionSource, name: str) -> bytes:
    """Pickles a source for the handshake; refuses one that a child could not read."""
    buffer = io.BytesIO()
    try:
        _SourcePickler(buffer).dump(source)
    except Exception as error:
        raise InvalidInput(f"reward {name} cannot be sent to a process: {error}; name it as 'file.py:name'") from error
    return buffer.getvalue()


def open_reply(reply: Reply, call: Call) -> Any:
    """Copies what the call reported into `call`; returns the result, or raises the exception of the reward."""
    call.cost_usd, call.tokens = reply.cost_usd, reply.tokens
    call.is_cost_known = reply.is_cost_known
    call.headers = reply.headers
    if reply.failure is not None:
        raise unpack_exception(reply.failure)
    try:
        return pickle.loads(reply.value)
    except Exception as error:
        raise TypeError(
            f"the result of a reward must be readable outside its process, got a {reply.type_name}: {error}"
        ) from error


# -- exceptions --


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
