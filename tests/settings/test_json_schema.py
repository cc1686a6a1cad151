"""The JSON schema of a run file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal

import pytest

from rewardflow.settings.json_schema import json_schema, type_schema
from rewardflow.settings.run_keys import keys

TYPES: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
    "array": list,
    "object": dict,
}


def is_a(name: str, value: Any) -> bool:
    return isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """As much of JSON schema as the schema uses."""
    if "anyOf" in schema:
        return any(fits(value, one) for one in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    names = schema.get("type", [])
    if names and not any(is_a(name, value) for name in ([names] if isinstance(names, str) else names)):
        return False
    if isinstance(value, list):
        parts = schema.get("prefixItems") or [schema.get("items", {})] * len(value)
        return len(parts) == len(value) and all(map(fits, value, parts))
    if isinstance(value, dict) and "properties" in schema:
        known = schema["properties"]
        return set(schema["required"]) <= set(value) <= set(known) and all(fits(value[n], known[n]) for n in value)
    return True


SMALL: dict[str, Any] = {
    "reward": "judge.py:f",
    "steps": 3,
    "data": {"task": "arithmetic"},
    "schedule": {"groups_per_step": 8},
}


def test_it_is_plain_json_and_has_every_key_with_its_default() -> None:
    schema = json.loads(json.dumps(json_schema()))
    for key in keys().values():
        home = schema
        for name in filter(None, key.section.split(".")):
            home = home["properties"][name]
        told = home["properties"][key.field]
        assert (key.field in home["required"]) == key.is_required
        if not key.is_required:
            assert fits(told["default"], told), key.name
            assert json.dumps(told["default"]) == json.dumps(key.default)
    assert schema["properties"]["validation"]["required"] == ["data"]
    assert schema["properties"]["validation"]["type"] == ["object", "null"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"reward": {"reward": "gsm8k"}, "run_dir": None},
        {"trainer": {"betas": [0.9, 1], "autocast": None, "lr": 1}, "generation": {"stop": ["x"]}},
        {"limits": {"rpm": "auto", "max_concurrency": 5, "journal": "run.db"}},
        {"validation": {"data": {"task": "arithmetic", "limit": 5}, "pass_at": [1]}},
    ],
)
def test_good_files_fit(changes: dict[str, Any]) -> None:
    assert fits({**SMALL, **changes}, json_schema())


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 1.5},
        {"steps": True},
        {"stepz": 1},
        {"reward": 3},
        {"data": {"task": "sorting"}},
        {"schedule": {}},
        {"trainer": {"betas": [0.9]}},
        {"trainer": {"lr": "high"}},
        {"generation": {"stop": [3]}},
        {"limits": {"rpm": "fast"}},
    ],
)
def test_bad_files_do_not_fit(changes: dict[str, Any]) -> None:
    assert not fits({**SMALL, **changes}, json_schema())


def test_what_must_be_given_is_required() -> None:
    assert json_schema()["required"] == ["reward", "data", "schedule", "steps"]


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (str | PathLike[str] | None, {"type": ["string", "null"]}),
        (str | PathLike[str], {"type": "string"}),
        (int | Literal["auto"], {"anyOf": [{"type": "integer"}, {"enum": ["auto"]}]}),
        (Sequence[str], {"type": "array", "items": {"type": "string"}}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (Mapping[str, Any], {"type": "object"}),
        (Any, {}),
    ],
)
def test_types_become_schemas(hint: Any, schema: dict[str, Any]) -> None:
    assert type_schema(hint) == schema
