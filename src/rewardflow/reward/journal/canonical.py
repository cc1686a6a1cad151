"""Bytes that stand for a value: what keys and identities are made of.

Always true: `canonical` never raises, whatever it is given; it gives the same bytes for the same value in every run and
on every machine; one odd thing inside a value hides nothing else in it. What JSON cannot tell apart, such as tuples and
lists or NaN and None, may give equal bytes.

What JSON can say goes the fast way, through orjson. Everything else is spelled out, item by item: sets sorted, paths as
text, functions and classes by name, arrays as lists, other objects by their `repr`, or by their type where that holds
an address, which differs from run to run, or raises.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

import orjson

# Dataclasses are spelled out, because orjson leaves their private fields out.
_OPTIONS = (
    orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATACLASS
)
_MAX_DEPTH = 100  # of what is spelled out, so that it does not depend on the caller's own depth


def canonical(value: Any) -> bytes:
    """Equal for equal values, different for different ones as far as they can be told apart."""
    try:
        return orjson.dumps(value, default=_contiguous_copy, option=_OPTIONS)
    except TypeError:  # an odd object, broken unicode, an integer beyond 64 bits, a cycle
        return _spell(value, ()).encode("ascii")


def _contiguous_copy(value: Any) -> Any:
    """A numpy array that is a view with gaps, as orjson can read it: how it lies in memory must not count."""
    if getattr(value, "flags", None) is None or value.flags.c_contiguous:
        raise TypeError
    return value.copy()


def _spell(value: Any, parents: tuple[int, ...]) -> str:
    """Text in ASCII. `parents` are the ids of what holds the value, which ends cycles."""
    if id(value) in parents or len(parents) > _MAX_DEPTH:
        return "..."
    try:
        return _spell_known(value, (*parents, id(value)))
    except Exception:  # from the value's own methods
        return _type_name(value)


def _spell_known(value: Any, parents: tuple[int, ...]) -> str:
    match value:
        case None | bool():
            return str(value)
        case str():
            return ascii(str.__str__(value))
        case int():
            return hex(value)  # of any length, where decimal digits are limited
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
        fields = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
        return _type_name(value) + _spell(fields, parents)
    return _spell_object(value, parents)


def _spell_object(value: Any, parents: tuple[int, ...]) -> str:
    name = getattr(value, "__qualname__", None)
    if isinstance(name, str):
        return f"<{name!a}>"
    as_list = getattr(value, "tolist", None)  # arrays of numpy and torch, whose `repr` leaves items out
    if callable(as_list):
        items = as_list()
        if isinstance(items, list | str | bytes | int | float | complex):
            return _type_name(value) + _spell(items, parents)
    text = ascii(value)
    return _type_name(value) if " at 0x" in text else f"{_type_name(value)}({text})"


def _braced(parts: Iterable[str]) -> str:
    return "{" + ", ".join(sorted(parts)) + "}"


def _type_name(value: Any) -> str:
    return f"<{type(value).__qualname__!a}>"
