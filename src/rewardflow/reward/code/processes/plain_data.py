"""Turns what a reward process sends into JSON and back, so that reading it in the parent runs no code of the child.

Always true: `decode` returns only None, bool, int, float, str, bytes, list, tuple, dict, `Reward` and `ArrayData`,
whatever the bytes are, or raises ValueError. `to_plain` refuses what cannot be sent, with the type in its message. A
message is bounded in bytes and in values, because the parent decodes it on its event loop: a thread would not help,
because the decoder of JSON keeps the interpreter lock to its end.

JSON has no tuples, bytes, or keys that are not texts; these are objects with one key that begins with "!".
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

from rewardflow.types import Reward

MAX_FRAME_BYTES = 16 * 1024 * 1024
MAX_VALUES = 250_000

_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_REWARD_FIELDS = frozenset(field.name for field in dataclasses.fields(Reward))


@dataclasses.dataclass(frozen=True, slots=True)
class ArrayData:
    """The values of an array or tensor. No list: a list of numbers means (score, query, explanation)."""

    values: list[Any]

    def tolist(self) -> list[Any]:
        return self.values

    def item(self) -> Any:
        only: Any = self.values
        while isinstance(only, list):
            if len(only) != 1:
                raise ValueError(f"only an array of one element is a number, got {len(only)} elements")
            only = only[0]
        return only


def encode(plain: Any) -> bytes:
    """Returns the JSON of a value from `to_plain`."""
    return json.dumps(plain, separators=(",", ":")).encode()


def decode(body: bytes) -> Any:
    """Returns the value of a JSON text from `encode`; raises ValueError if it is none."""
    check_size(body, ValueError)
    try:
        return json.loads(body, object_hook=_untagged)
    except Exception as error:  # also of a `Reward` that would be inconsistent
        raise ValueError(f"it is not plain data: {error}") from error


def check_size(body: bytes, error: type[Exception]) -> None:
    """Raises the error if a message is larger than the parent reads. Takes a small part of the time of decoding it."""
    if len(body) > MAX_FRAME_BYTES:
        raise error(f"it must have at most {MAX_FRAME_BYTES} bytes, got {len(body)}")
    num_values = _most_values(body)
    if num_values > MAX_VALUES:  # count again without the texts, which may hold commas and brackets
        num_values = _most_values(_TEXT.sub(b"", body))
    if num_values > MAX_VALUES:
        raise error(f"it must have at most {MAX_VALUES} values, got about {num_values}")


def _most_values(body: bytes) -> int:
    """Returns how many values the JSON can hold at most: each but the first follows one of these characters."""
    return 1 + sum(map(body.count, (b",", b"[", b"{", b":")))


def to_plain(value: Any, *, is_score: bool = True) -> Any:
    """Returns the value in a form for `encode`; raises TypeError for an object that cannot be sent.

    `is_score`: an array here may be the score, or hold those of a group, so it stays apart from lists.
    """
    kind = type(value)
    if value is None or kind is bool or kind is float or kind is int or kind is str:
        return value
    if isinstance(value, Reward):
        fields = {name: getattr(value, name) for name in _REWARD_FIELDS}
        return {"!reward": {name: to_plain(one, is_score=False) for name, one in fields.items()}}
    if isinstance(value, ArrayData) or callable(getattr(value, "tolist", None)):
        listed = value.tolist()  # numpy, torch, pandas; a scalar gives a number
        if not isinstance(listed, list):
            return to_plain(listed, is_score=False)
        plain = to_plain(listed, is_score=False)
        return {"!array": plain} if is_score else plain
    if isinstance(value, Mapping):
        return _plain_mapping(value, is_score)
    if isinstance(value, list | tuple | set | frozenset):
        items = [to_plain(one, is_score=is_score) for one in value]
        return {"!tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, bytes | bytearray):
        return {"!bytes": base64.b64encode(value).decode()}
    return _plain_number_or_text(value)


def _plain_mapping(mapping: Mapping[Any, Any], is_score: bool) -> dict[str, Any]:
    pairs = [(key, to_plain(one, is_score=is_score and key == "score")) for key, one in mapping.items()]
    if all(type(key) is str and not key.startswith("!") for key, _ in pairs):
        return dict(pairs)
    return {"!dict": [[to_plain(key, is_score=False), one] for key, one in pairs]}


def _plain_number_or_text(value: Any) -> Any:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if hasattr(value, "__float__"):
        return float(value)
    raise TypeError(f"a {type(value).__name__} cannot leave the process")


def _untagged(pairs: dict[str, Any]) -> Any:
    if len(pairs) != 1:
        return pairs
    ((tag, value),) = pairs.items()
    match tag:
        case "!tuple" if isinstance(value, list):
            return tuple(value)
        case "!bytes" if isinstance(value, str):
            return base64.b64decode(value, validate=True)
        case "!dict" if isinstance(value, list):
            return dict(value)
        case "!array" if isinstance(value, list):
            return ArrayData(value)
        case "!reward" if isinstance(value, dict) and value.keys() <= _REWARD_FIELDS:
            return Reward(**value)
    if tag.startswith("!"):
        raise ValueError(f"unknown tag {tag[:20]!r}")
    return pairs
