"""JSON over HTTP: turns records into JSON and back, by their type hints, and makes the server's answers.

Always true: nothing is unpickled, and no value of a wrong type gets into a record: `from_plain` raises `InvalidInput`
with the place, the type and the value. A value that JSON cannot hold is sent as a text that says so. An error is an
object `{"error": {"message", "type"}}` and holds no secret. What is not a verdict is never answered with a number.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar, get_args, get_origin

import orjson
from aiohttp import web

from rewardflow.errors import InvalidInput
from rewardflow.observe.nesting import is_too_deep
from rewardflow.observe.redact import redact
from rewardflow.types import FailureKind, Reward

T = TypeVar("T")

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
_MAX_DEPTH = 200  # orjson refuses what is nested deeper than 254
_ONE_DIGIT = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER: Final = b"0" * 19  # fewer digits fit 64 bits
_MAX_DIGITS: Final = 20
_NUMBERS: Mapping[type, Any] = {int: int, float: (int, float), str: str, bool: bool}


JSON: Final = "application/json"
RETRY_AFTER_S: Final = 1

_STATUS_OF_KIND: Final[Mapping[FailureKind, int]] = {
    "timeout": 504,
    "rate_limited": 502,
    "service": 502,
    "unparsable": 502,
    "user_error": 500,
    "cancelled": 503,
    "budget": 402,
    "outage": 503,
}


def to_json(value: object) -> bytes:
    """Writes records, tuples and mappings as JSON; a value without a form in JSON is replaced by its type's name."""
    try:
        return orjson.dumps(value, default=_in_words, option=_OPTIONS)
    except TypeError:  # deep inside there is a huge number, half a character, or too much nesting
        return orjson.dumps(_writable(value), default=_in_words, option=_OPTIONS)


def json_problem(value: object) -> str | None:
    """Says why a value cannot be written as JSON, or returns None."""
    try:
        orjson.dumps(value, default=_plain_mapping, option=_OPTIONS)
    except TypeError as error:
        return str(error)
    return None


def read_json(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"the body must be JSON, got {len(text):,} bytes: {error}") from None


def read_body(text: bytes) -> Any:
    """Reads the JSON of a request, and refuses what could not be passed on as it came."""
    value = read_json(text)
    if text.count(b"[") + text.count(b"{") > _MAX_DEPTH and is_too_deep(value, _MAX_DEPTH):
        raise InvalidInput(f"the body must be nested at most {_MAX_DEPTH} deep")
    if _LONG_NUMBER in text.translate(_ONE_DIGIT):  # many times as fast as a regular expression
        json.loads(text, parse_int=_check_whole_number)
    return value


def _check_whole_number(digits: str) -> None:
    """Refuses a number that orjson has rounded: a reference that differs would be judged in its place."""
    if len(digits) > _MAX_DIGITS or not -(2**63) <= int(digits) < 2**64:
        raise InvalidInput(f"a whole number must fit 64 bits, and a longer one be sent as a text, got {digits:.100}")


def from_plain(kind: type[T], value: Any, where: str = "the body") -> T:
    """Makes a value of this type from parsed JSON: a record, or what records hold."""
    reader: Any = _reader
    made: T = reader(kind)(value, where)
    return made


def _in_words(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    return f"<{type(value).__qualname__}, which cannot travel>"


def _writable(value: object, depth: int = 0) -> object:
    """Returns the value with a text in place of each part that JSON cannot hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return _in_words(value)
    is_record = dataclasses.is_dataclass(value) and not isinstance(value, type)
    if not is_record and not isinstance(value, Mapping | list | tuple):
        return value
    if depth == _MAX_DEPTH:
        return _in_words(())
    if isinstance(value, list | tuple):
        return [_writable(one, depth + 1) for one in value]
    if isinstance(value, Mapping):
        named = value.items()
        return {_writable(key, depth + 1): _writable(one, depth + 1) for key, one in named}
    fields = dataclasses.fields(typing.cast("Any", value))
    return {field.name: _writable(getattr(value, field.name), depth + 1) for field in fields}


def _plain_mapping(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"type is not JSON serializable: {type(value).__qualname__}")


@functools.cache
def _reader(kind: Any) -> Any:
    """Returns the function that makes a value of this type, so that hints are read once and not for each value."""
    origin = get_origin(kind)
    if kind is Any or kind is object:
        return _anything
    if origin in (typing.Union, types.UnionType):
        return _union_reader(get_args(kind))
    if origin is typing.Literal:
        return functools.partial(_literal, get_args(kind))
    if dataclasses.is_dataclass(kind):
        return _record_reader(kind)
    if origin is tuple or origin in (list, Sequence):
        return _sequence_reader(kind, origin, get_args(kind))
    if origin in (Mapping, dict):
        return _mapping_reader(*get_args(kind))
    if kind in _NUMBERS:
        return functools.partial(_number, kind)
    raise TypeError(f"no value of type {kind} can come from JSON")


def _anything(value: Any, where: str) -> Any:
    return value


def _number(kind: type, value: Any, where: str) -> Any:
    if not isinstance(value, _NUMBERS[kind]) or (isinstance(value, bool) and kind is not bool):
        raise InvalidInput(f"{where} must be {kind.__name__}, got {value!r:.100}")
    return value


def _literal(allowed: tuple[Any, ...], value: Any, where: str) -> Any:
    if value not in allowed:
        raise InvalidInput(f"{where} must be one of {', '.join(map(repr, allowed))}, got {value!r:.100}")
    return value


def _union_reader(kinds: tuple[Any, ...]) -> Any:
    readers = [_reader(kind) for kind in kinds if kind is not type(None)]
    takes_none = type(None) in kinds

    def read(value: Any, where: str) -> Any:
        if value is None and takes_none:
            return None
        for reader in readers[:-1]:
            try:
                return reader(value, where)
            except InvalidInput:
                continue
        return readers[-1](value, where)

    return read


def _sequence_reader(kind: Any, origin: Any, parts: tuple[Any, ...]) -> Any:
    make = list if origin in (list, Sequence) else tuple
    if make is tuple and not (len(parts) == 2 and parts[1] is Ellipsis):
        return _fixed_tuple_reader(tuple(_reader(part) for part in parts))
    read_one = _reader(parts[0])

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, list):
            raise InvalidInput(f"{where} must be a list, got {value!r:.100}")
        if read_one is _anything:
            return make(value)
        return make([read_one(one, where) for one in value])

    return read


def _fixed_tuple_reader(readers: tuple[Any, ...]) -> Any:
    def read(value: Any, where: str) -> Any:
        if not isinstance(value, list) or len(value) != len(readers):
            raise InvalidInput(f"{where} must be a list of {len(readers)}, got {value!r:.100}")
        return tuple([reader(one, where) for reader, one in zip(readers, value, strict=True)])

    return read


def _mapping_reader(key_kind: Any, value_kind: Any) -> Any:
    read_one = _reader(value_kind)

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, Mapping):
            raise InvalidInput(f"{where} must be an object, got {value!r:.100}")
        if read_one is _anything and key_kind is str:
            return value
        try:
            keys = [key_kind(key) for key in value]
        except ValueError:
            raise InvalidInput(f"the names in {where} must be {key_kind.__name__}") from None
        return {key: read_one(one, f"{where}.{key!s:.40}") for key, one in zip(keys, value.values(), strict=True)}

    return read


def _record_reader(kind: Any) -> Any:
    hints = typing.get_type_hints(kind)
    fields = {field.name: _reader(hints[field.name]) for field in dataclasses.fields(kind) if field.init}
    needed = {
        field.name
        for field in dataclasses.fields(kind)
        if field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, Mapping):
            raise InvalidInput(f"{where} must be an object, got {value!r:.100}")
        if unknown := value.keys() - fields.keys():
            raise InvalidInput(f"{where} takes {', '.join(fields)}, got {sorted(unknown)[0]!r:.100}")
        if missing := needed - value.keys():
            raise InvalidInput(f"{where} must have {sorted(missing)[0]!r}")
        return kind(**{name: fields[name](one, f"{where}.{name}") for name, one in value.items()})

    return read


# -- answers -----------------------------------------------------------------------------------------------------------


def json_answer(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=to_json(value), content_type=JSON, headers=headers)


def error_answer(status: int, message: str, kind: str, headers: Mapping[str, str] | None = None) -> web.Response:
    return json_answer({"error": {"message": redact(message), "type": kind}}, status=status, headers=headers)


def failure_answer(reward: Reward) -> web.Response:
    """The answer about a failed verdict, for protocols that have no word for it."""
    kind = reward.kind or "user_error"
    headers = {"X-Rewardflow-Failure": kind}
    return error_answer(_STATUS_OF_KIND[kind], f"the rollout was not judged: {reward.error}", kind, headers)
