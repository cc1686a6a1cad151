"""Writes the resolved settings of a run to its directory, without secrets.

Always true: a value that may be a secret by its name or its form is not written; everything else can be read back.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from rewardflow.observe.nesting import read_json
from rewardflow.observe.private_file import write_private
from rewardflow.observe.redact import REDACTED, redact
from rewardflow.settings.run_keys import FREE, LIMITS, keys
from rewardflow.settings.run_settings import RunSettings
from rewardflow.settings.typed_values import may_be_secret


def write_settings(settings: RunSettings, path: Path) -> None:
    write_private(path, json.dumps(shown_settings(settings), indent=2).encode() + b"\n")


def changed_settings(settings: RunSettings, path: Path) -> list[str]:
    """Returns settings that differ from the file, as then and now; nothing without a readable file."""
    try:
        then = read_json(path.read_bytes())
    except (OSError, ValueError):
        return []
    return list(_changes("", then, json.loads(json.dumps(shown_settings(settings)))))


def _changes(name: str, then: Any, now: Any) -> Iterator[str]:
    if not isinstance(then, Mapping) or not isinstance(now, Mapping):
        if then != now:
            yield f"{name} was {json.dumps(then)} and is {json.dumps(now)}"
        return
    # A setting that another version of rewardflow does not have is no change; what people name themselves is.
    for key in {**then, **now} if _is_named_by_user(name) else [key for key in now if key in then]:
        yield from _changes(f"{name}.{key}" if name else key, then.get(key), now.get(key))


def _is_named_by_user(name: str) -> bool:
    """Whether the keys inside this mapping are the user's own: it is the value of a setting, not a section."""
    parts = name.split(".")
    outer = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return parts[0] in (*FREE, LIMITS) or any(one in keys() for one in outer)


def shown_settings(settings: RunSettings) -> dict[str, Any]:
    """Returns the settings as plain JSON, in the layout of a run file."""
    return {field.name: _shown(field.name, getattr(settings, field.name)) for field in dataclasses.fields(settings)}


def _shown(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if dataclasses.is_dataclass(value):
        # The tree's own settings have no secrets, and "max_prompt_tokens" need not be told from "token".
        return _plain(value)
    if may_be_secret(name):
        return REDACTED
    if isinstance(value, Mapping):
        return {str(key): _shown(str(key), inside) for key, inside in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(name, inside) for inside in value]
    return _plain(value)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, PathLike):
        return redact(str(value))
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {str(key): _shown(str(key), inside) for key, inside in value.items()}  # named by the user
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, int | float) else redact(repr(value))
