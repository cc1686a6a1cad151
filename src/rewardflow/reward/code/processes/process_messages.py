"""Defines the messages between a reward process and its parent, and turns them into bytes and back.

Always true: the parent pickles what it sends, and the child sends plain data only (`plain_data.py`), because reading a
pickle can run any code. An exception that Python or `rewardflow.errors` defines arrives as itself; any other one as a
stand-in with its name, its text and its attributes, so that no class of the child's choice runs code here. A record
with read-only mappings arrives unchanged.

A frame is a header (body length, call number) and a body. Number 0 is the parent's handshake and the child's
answer to it; other numbers are calls and their replies. This module imports little, because every new process loads it.
"""

from __future__ import annotations

import builtins
import copyreg
import io
import math
import pickle
import struct
import traceback
from collections import ChainMap
from dataclasses import dataclass
from types import FunctionType, MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

from rewardflow import errors
from rewardflow.errors import InvalidInput
from rewardflow.reward.code.error_bodies import body_of_response
from rewardflow.reward.code.processes.plain_data import check_size, decode, encode, to_plain
from rewardflow.reward.code.user_frames import NOWHERE, Origin, first_cause, give_origin, origin_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rewardflow.reward.code.current_call import Call

HEADER = struct.Struct("!QQ")
HANDSHAKE = 0
_MAX_TEXT_CHARS = 100_000  # of each text of a failure
_MAX_STAND_INS = 8
_UNSENDABLE = object()
# What tells the meaning of an HTTP client's exception, also where the client has it as a property.
_TOLD_BY_CLIENTS = ("status_code", "status", "code", "headers", "response", "reason", "body")
_OWN_ERRORS = (
    errors.RewardflowError,
    errors.InvalidInput,
    errors.RewardLoadError,
    errors.CallError,
    errors.RateLimited,
    errors.ServiceError,
    errors.Unparsable,
)
# The fields of `CallError`s: the type that the parent believes, and the value that it takes instead of another type.
_OWN_FIELDS: dict[str, tuple[tuple[type, ...], Any]] = {
    "status": ((int,), None),
    "retryable": ((bool,), True),
    "retry_after_s": ((int, float), None),
    "was_sent": ((bool,), True),
    "headers": ((dict,), None),
}


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
    """An exception as plain data: its classes from the nearest to the farthest, its arguments and its attributes."""

    classes: tuple[tuple[str, str], ...]  # module and qualified name
    arguments: tuple[Any, ...]
    attributes: dict[str, Any]
    summary: str
    traceback_text: str
    origin: Origin = NOWHERE


@dataclass(frozen=True, slots=True)
class Reply:
    """The result or the failure of a call, with the usage and headers it reported."""

    value: Any
    failure: Failure | None
    cost_usd: float
    tokens: int
    is_cost_known: bool
    headers: dict[str, str] | None
    num_unpriced: int  # requests of the call whose cost is not known
    cached_tokens: int = 0
    cache_saved_usd: float = 0.0


# -- from the child: plain data --


def encode_reply(reply: Reply) -> bytes:
    """Returns the body of a reply; raises TypeError if the result cannot be sent or is too large."""
    failure = None if reply.failure is None else _plain_failure(reply.failure)
    usage = [reply.cost_usd, reply.tokens, reply.is_cost_known, reply.headers, reply.num_unpriced]
    body = encode([to_plain(reply.value), failure, *usage, reply.cached_tokens, reply.cache_saved_usd])
    check_size(body, TypeError)
    return body


def decode_reply(body: bytes) -> Reply:
    """Reads a reply; raises ValueError for anything else."""
    match decode(body):
        case [
            value,
            failure,
            int() | float() as cost_usd,
            int() as tokens,
            bool() as is_known,
            headers,
            int() as num_unpriced,
            int() as cached_tokens,
            int() | float() as saved_usd,
        ] if (
            0 <= cost_usd < math.inf
            and 0 <= saved_usd < math.inf
            and 0 <= cached_tokens <= tokens
            and _is_headers(headers)
            and num_unpriced >= 0
        ):
            told = (float(cost_usd), tokens, is_known, headers, num_unpriced, cached_tokens, float(saved_usd))
            return Reply(value, _read_failure(failure), *told)
    raise ValueError("it is no reply")


def encode_answer(failure: Failure | None) -> bytes:
    """Returns the body of the answer to a handshake."""
    return encode(None if failure is None else _plain_failure(failure))


def decode_answer(body: bytes) -> Failure | None:
    return _read_failure(decode(body))


def _plain_failure(failure: Failure) -> list[Any]:
    return [
        [list(names) for names in failure.classes],
        to_plain(failure.arguments, is_score=False),
        to_plain(failure.attributes, is_score=False),
        failure.summary[:_MAX_TEXT_CHARS],
        failure.traceback_text[-_MAX_TEXT_CHARS:],
        failure.origin.place,
        failure.origin.trace,
    ]


def _read_failure(fields: Any) -> Failure | None:
    match fields:
        case None:
            return None
        case [
            list() as classes,
            tuple() as arguments,
            dict() as attributes,
            str() as summary,
            str() as text,
            str() as place,
            str() as trace,
        ] if _is_class_list(classes) and all(isinstance(name, str) for name in attributes):
            both = tuple((one[0], one[1]) for one in classes)
            return Failure(both, arguments, attributes, summary, text, Origin.bounded(place, trace))
    raise ValueError("it is no failure")


def _is_headers(headers: Any) -> bool:
    if headers is None:
        return True
    return isinstance(headers, dict) and all(isinstance(one, str) for pair in headers.items() for one in pair)


# -- from the parent: frames and pickles --


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
    call.cached_tokens, call.cache_saved_usd = reply.cached_tokens, reply.cache_saved_usd
    call.num_unpriced = reply.num_unpriced  # the child began with the count that this process sent
    if reply.failure is not None:
        raise unpack_exception(reply.failure)
    return reply.value


# -- exceptions --


def pack_exception(raised: Exception) -> Failure:
    """Packs an exception so that as much of it as possible arrives: above all a status, headers, a time to wait.

    Of a group, which cannot be sent, the first exception is packed; the text of its traceback has all of them.
    """
    error = first_cause(raised)
    told = {name: value for name in _TOLD_BY_CLIENTS if (value := _attribute(error, name)) is not None}
    attributes = {name: _sendable(value) for name, value in {**told, **vars(error)}.items()}
    return Failure(
        classes=_classes_of(error),
        arguments=tuple(_text(one) if (sent := _sendable(one)) is _UNSENDABLE else sent for one in error.args),
        attributes={name: value for name, value in attributes.items() if value is not _UNSENDABLE},
        summary=f"{type_name(error)}: {_text(error)}",
        traceback_text="".join(traceback.format_exception(raised)),
        origin=origin_of(error),
    )


def _classes_of(error: BaseException) -> tuple[tuple[str, str], ...]:
    kinds = (cls for cls in type(error).__mro__ if issubclass(cls, Exception) and cls is not Exception)
    return tuple((cls.__module__, cls.__qualname__) for cls in kinds)


def _attribute(error: BaseException, name: str) -> Any:
    try:
        return getattr(error, name, None)
    except Exception:  # raised by a property of the client
        return None


def _sendable(value: Any) -> Any:
    """Returns plain data for a value of an exception, or `_UNSENDABLE`. Of responses, keeps status and headers."""
    if isinstance(value, BaseException):
        return {"classes": [list(names) for names in _classes_of(value)], "text": _text(value)}
    try:
        plain = to_plain(value, is_score=False)
        return value if len(encode(plain)) <= _MAX_TEXT_CHARS else _UNSENDABLE
    except Exception:
        pass
    try:
        if hasattr(value, "items"):
            return {str(name): str(one) for name, one in value.items()}
        statuses = {name: getattr(value, name, None) for name in ("status_code", "status", "code")}
        shape: dict[str, Any] = {name: one for name, one in statuses.items() if type(one) is int}
        if shape:
            shape["headers"] = {str(name): str(one) for name, one in getattr(value, "headers", {}).items()}
            shape["text"] = body_of_response(value)
        return {"shape": shape} if shape else _UNSENDABLE
    except Exception:
        return _UNSENDABLE


def _text(value: object) -> str:
    try:
        return str(value)[:_MAX_TEXT_CHARS]
    except Exception:  # raised by the user's own `__str__`
        return f"a {type_name(value)}"


def unpack_exception(failure: Failure) -> Exception:
    """Returns the exception as the nearest of its classes that Python or rewardflow defines, or as text.

    If that is not its own class, and its own is no local one, a stand-in with its name and text replaces it, because
    they say what has failed.
    """
    told = failure.summary.partition(": ")[2]
    error = _rebuilt(failure.classes, failure.arguments, failure.attributes, told) or RuntimeError(failure.summary)
    give_origin(error, failure.origin)
    error.add_note(f"In the reward process:\n{failure.traceback_text}")
    return error


def _rebuilt(
    classes: Iterable[Sequence[str]], arguments: tuple[Any, ...], attributes: Mapping[str, Any], text: str
) -> Exception | None:
    """Returns the exception that these classes, from the nearest to the farthest, name; None if they name none."""
    missing: list[str] = []
    for module, name in classes:
        cls = _safe_class(module, name)
        if cls is not None and (error := _instance(cls, missing, arguments, attributes, text)) is not None:
            return error
        if cls is None and "<locals>" not in name and module != "__main__":
            missing.append(name.rpartition(".")[2])
    return _instance(RuntimeError, missing, arguments, attributes, text) if missing else None


def _safe_class(module: str, name: str) -> type[Exception] | None:
    """Returns an exception class of Python or of rewardflow: those whose code is known, whatever the child names."""
    if module == "builtins":
        found: Any = vars(builtins).get(name)
        return found if isinstance(found, type) and issubclass(found, Exception) else None
    return next((cls for cls in _OWN_ERRORS if (cls.__module__, cls.__qualname__) == (module, name)), None)


def _instance(
    cls: type[Exception], missing: list[str], arguments: tuple[Any, ...], attributes: Mapping[str, Any], text: str
) -> Exception | None:
    """Returns an instance with these arguments and attributes, without calling `__init__`; None if that is impossible.

    An attribute that would hide a method of exceptions is left out.
    """
    try:
        for name in reversed(missing[:_MAX_STAND_INS]):
            cls = _stand_in(cls, name, text)
        error = cls.__new__(cls, *arguments)
        error.args = arguments
        kept = {name: one for name, one in attributes.items() if name[:2] != "__" and not hasattr(BaseException, name)}
        vars(error).update({name: _restored(value) for name, value in kept.items()})
        if isinstance(error, errors.CallError):
            _set_own_fields(error)
        str(error)
    except Exception:
        return None
    return error


def _stand_in(base: type[Exception], name: str, text: str) -> type[Exception]:
    """Makes a class with the name of another one, whose own way to make its text is not known here."""
    shows_text = bool(text) and not issubclass(base, errors.RewardflowError)  # which remove secrets from theirs
    return type(name, (base,), {"__str__": lambda _: text} if shows_text else {})


def _set_own_fields(error: errors.CallError) -> None:
    """Gives the error all fields that the agent reads; a value of a wrong type counts as not given."""
    own = vars(error)
    for name, (kinds, default) in _OWN_FIELDS.items():
        value = own.get(name)
        is_right = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
        own[name] = value if is_right else default
    if own["headers"] is not None and not _is_headers(own["headers"]):
        own["headers"] = {str(key): str(value) for key, value in own["headers"].items()}


def _restored(value: Any) -> Any:
    match value:
        case {"classes": list() as classes, "text": str() as text} if len(value) == 2 and _is_class_list(classes):
            return _rebuilt(classes, (text,), {}, text) or RuntimeError(text)
        case {"shape": dict() as shape} if len(value) == 1 and all(isinstance(name, str) for name in shape):
            return SimpleNamespace(**shape)
    return value


def _is_class_list(classes: list[Any]) -> bool:
    return all(
        isinstance(names, list) and len(names) == 2 and all(isinstance(one, str) for one in names) for names in classes
    )
