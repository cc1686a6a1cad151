"""Lists every key of a run file by its dotted name, from the records in `run_settings.py`.

Always true: the loader, the JSON schema and the reference page all use this list, so a field added to a record becomes
a key in all three.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rewardflow.reward.settings import AgentSettings, LimitSettings
from rewardflow.settings.explanations import explanations
from rewardflow.settings.rules import closest
from rewardflow.settings.run_settings import RunSettings

TOP: Final = ""  # the section of keys outside every section
LIMITS: Final = "limits"
FREE: Final = ("reward", "reward_kwargs")  # keys whose values are mappings with the user's own keys


@dataclass(frozen=True, slots=True)
class Key:
    """One setting. `default` is `dataclasses.MISSING` where the key must be given."""

    name: str
    hint: Any
    default: Any
    explanation: str

    @property
    def section(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def field(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def is_required(self) -> bool:
        return self.default is dataclasses.MISSING


@functools.cache
def sections() -> Mapping[str, tuple[type[Any], ...]]:
    """Returns the records of each section in the order of `RunSettings`; `limits` has two records.

    The name of a section inside another is dotted.
    """
    return {TOP: (RunSettings,), **_inside(TOP, RunSettings)}


def _inside(section: str, record: type[Any]) -> dict[str, tuple[type[Any], ...]]:
    """Returns the sections among a record's fields, each followed by the sections inside it."""
    found: dict[str, tuple[type[Any], ...]] = {}
    for name, hint in typing.get_type_hints(record).items():
        inner = next((one for one in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(one)), None)
        dotted = f"{section}.{name}" if section else name
        if dotted == LIMITS:
            found[dotted] = (LimitSettings, AgentSettings)
        elif isinstance(inner, type):
            found |= {dotted: (inner,), **_inside(dotted, inner)}
    return found


def outer_of(section: str) -> str:
    """Returns the section that contains this section."""
    return section.rpartition(".")[0]


def field_of(section: str) -> dataclasses.Field[Any]:
    """Returns the field that holds a section; its default says whether the section is optional."""
    (record,) = sections()[outer_of(section)]
    return next(field for field in dataclasses.fields(record) if field.name == section.rpartition(".")[2])


@functools.cache
def keys() -> Mapping[str, Key]:
    """Returns all keys by name, section by section. A section itself is not a key."""
    return {
        key.name: key for section, records in sections().items() for record in records for key in _of(section, record)
    }


def keys_of(section: str) -> list[Key]:
    return [key for key in keys().values() if key.section == section]


def nearest(name: str) -> str:
    """Returns a hint for an unknown key: the key that was probably meant, or the keys that exist."""
    section, _, field = name.rpartition(".")
    everywhere = {key.field: key.name for key in reversed(list(keys().values()))}  # of equal field names the first wins
    own = {key.field: key.name for key in keys_of(section)}
    if section == TOP:
        own |= {name: name for name in sections() if name}
    found = _close(field, own) or everywhere.get(field) or _close(field, everywhere)
    if section not in sections():
        found = _close(name, {key: key for key in keys()}) or found
    return (
        f"did you mean {found!r}?"
        if found
        else f"there are {', '.join(own or [name for name in sections() if name and not outer_of(name)])}"
    )


def _close(name: str, known: Mapping[str, str]) -> str | None:
    found = closest(name, known)
    return None if found is None else known[found]


def _of(section: str, record: type[Any]) -> Sequence[Key]:
    hints = typing.get_type_hints(record)
    prefix = f"{section}." if section else ""
    explained = {} if section == LIMITS else explanations(record)
    return [
        Key(prefix + field.name, hints[field.name], _default(field), explained.get(field.name, ""))
        for field in dataclasses.fields(record)
        if prefix + field.name not in sections()
    ]


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
