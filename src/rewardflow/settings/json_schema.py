"""Builds the JSON schema of a run file, for editors and for programs that write run files.

Always true: the schema has exactly the keys of `RunSettings`, each with its type, default and explanation. It does not
hold rules that a type cannot express, such as "divisible by": the loader checks those.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import os
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union

from rewardflow.settings.run_keys import LIMITS, TOP, Key, field_of, keys_of, outer_of, sections
from rewardflow.settings.run_settings import RunSettings

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_NAMES: Mapping[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    os.PathLike: "string",
}


def json_schema() -> dict[str, Any]:
    """Returns the schema as plain data."""
    top = _object(keys_of(TOP), _first_line(RunSettings))
    for section, records in sections().items():
        if section != TOP:
            explained = "Settings of the reward agent." if section == LIMITS else _first_line(records[0])
            place = top
            for name in filter(None, outer_of(section).split(".")):
                place = place["properties"][name]
            field = field_of(section)
            place["properties"][field.name] = _section(_object(keys_of(section), explained), field)
            if place is not top and field.default is dataclasses.MISSING:
                place["required"].append(field.name)
    top["properties"]["runtime"]["type"] = ["object", "string"]  # the short form: a kind or an address
    # Required keys and sections, in the order of the record.
    top["required"] = [
        field.name
        for field in dataclasses.fields(RunSettings)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    return {"$schema": _DIALECT, "title": "A run of rewardflow", **top}


def _section(schema: dict[str, Any], field: dataclasses.Field[Any]) -> dict[str, Any]:
    """Also allows `null` for an optional section, which means that the section is left out."""
    return {**schema, "type": ["object", "null"]} if field.default is None else schema


def _object(keys: Sequence[Key], description: str) -> dict[str, Any]:
    return {
        "type": "object",
        "description": description,
        "properties": {key.field: _property(key) for key in keys},
        "required": [key.field for key in keys if key.is_required],
        "additionalProperties": False,
    }


def _property(key: Key) -> dict[str, Any]:
    explained = {"description": key.explanation} if key.explanation else {}
    default = {} if key.is_required else {"default": _plain(key.default)}
    return {**type_schema(key.hint), **explained, **default}


def type_schema(hint: Any) -> dict[str, Any]:
    """Returns the schema of the values of a type."""
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin in _NAMES:
        return {"type": _NAMES[origin]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return _any_of([type_schema(one) for one in arguments])
    if origin is tuple and arguments[-1] is not Ellipsis:
        items = [type_schema(one) for one in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin in (list, tuple, collections.abc.Sequence):
        return {"type": "array", "items": type_schema(arguments[0])}
    if origin in (dict, collections.abc.Mapping):
        return {"type": "object"}
    return {}  # anything


def _any_of(choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Combines the choices; choices of plain types become one list of type names."""
    different = [choice for i, choice in enumerate(choices) if choice not in choices[:i]]
    if len(different) == 1:
        return different[0]
    if all(list(choice) == ["type"] for choice in different):
        return {"type": [choice["type"] for choice in different]}
    return {"anyOf": different}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _first_line(record: type[Any]) -> str:
    assert dataclasses.is_dataclass(record)
    return (record.__doc__ or "").partition("\n")[0]
