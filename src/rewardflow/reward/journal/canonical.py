"""Turns any value into bytes, from which journal keys and identities are made.

Always true: `canonical` never raises, whatever it gets; it returns the same bytes for the same value in every run and
on every machine; an odd object inside a value does not hide the rest of it. Values that JSON does not distinguish, such
as tuples and lists or NaN and None, may give equal bytes.

A dataclass field with the metadata `OUTSIDE_IDENTITY` is left out: it does not change verdicts.

Values that JSON can hold take the fast way, through orjson. All others are written out item by item: sets sorted, paths
as text, functions and classes by name, arrays as lists, images by shape and a digest of their pixels, other objects by
their `repr`, or by their type if the `repr` raises or holds an address, which differs from run to run.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, Final

import orjson

# Dataclasses are written out here, because orjson leaves out their private fields.
_OPTIONS = (
    orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATACLASS
)
OUTSIDE_IDENTITY: Final = MappingProxyType({"identity": False})
"""The metadata of a field that does not change verdicts: `field(default=True, metadata=OUTSIDE_IDENTITY)`."""

_MAX_DEPTH = 100  # of written-out values; fixed, so that the result does not depend on the caller's stack depth


def canonical(value: Any) -> bytes:
    """Returns equal bytes for equal values, and different bytes for different values as far as possible."""
    try:
        return orjson.dumps(value, default=_contiguous_copy, option=_OPTIONS)
    except TypeError:  # an odd object, broken unicode, an integer beyond 64 bits, a cycle
        return _spell(value, ()).encode("ascii")


def identity_fields(record: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass on which verdicts may depend, by name."""
    fields = (field for field in dataclasses.fields(record) if field.metadata.get("identity", True))
    return {field.name: getattr(record, field.name, None) for field in fields}


def _contiguous_copy(value: Any) -> Any:
    """Copies a numpy view with gaps, which orjson cannot read: the memory layout must not change the bytes."""
    if getattr(value, "flags", None) is None or value.flags.c_contiguous:
        raise TypeError
    return value.copy()


def _spell(value: Any, parents: tuple[int, ...]) -> str:
    """Writes a value out as ASCII text. `parents` holds the ids of the enclosing values, which ends cycles."""
    if id(value) in parents or len(parents) > _MAX_DEPTH:
        return "..."
    try:
        return _spell_known(value, (*parents, id(value)))
    except Exception:  # raised by the value's own methods
        return _type_name(value)


def _spell_known(value: Any, parents: tuple[int, ...]) -> str:
    match value:
        case None | bool():
            return str(value)
        case str():
            return ascii(str.__str__(value))
        case int():
            return hex(value)  # works for any length; Python limits the number of decimal digits
        case float():
            return float.__repr__(value)
        case Mapping():
            return _braced(f"{_spell(key, parents)}: {_spell(item, parents)}" for key, item in value.items())
        case list() | tuple():
            return f"[{', '.join(_spell(item, parents) for item in value)}]"
        case set() | frozenset():
            return _braced(_spell(item, parents) for item in value)
        case PurePath():
            return ascii(str(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _type_name(value) + _spell(identity_fields(value), parents)
    return _spell_object(value, parents)


def _spell_object(value: Any, parents: tuple[int, ...]) -> str:
    name = getattr(value, "__qualname__", None)
    if isinstance(name, str):
        return f"<{name!a}>"
    as_list = getattr(value, "tolist", None)  # arrays of numpy and torch, because their `repr` leaves out items
    if callable(as_list):
        items = as_list()
        if isinstance(items, list | str | bytes | int | float | complex):
            return _type_name(value) + _spell(items, parents)
    interface = getattr(value, "__array_interface__", None)  # images, whose `repr` has no pixels
    if isinstance(interface, Mapping) and isinstance(interface.get("data"), bytes):
        pixels = hashlib.blake2b(interface["data"], digest_size=16).hexdigest()
        return _type_name(value) + _spell([interface["shape"], interface["typestr"], pixels], parents)
    text = ascii(value)
    return _type_name(value) if " at 0x" in text else f"{_type_name(value)}({text})"


def _braced(parts: Iterable[str]) -> str:
    return "{" + ", ".join(sorted(parts)) + "}"


def _type_name(value: Any) -> str:
    return f"<{type(value).__qualname__!a}>"
