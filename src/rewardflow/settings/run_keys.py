"""Every key of a run file, by its dotted name, as the records of the tree have them.

Always true: loading, schema and reference all go through this one list, so that a field added to a record is a key
everywhere.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rewardflow.reward.settings import AgentSettings, LimitSettings
from rewardflow.settings.explanations import explanations
from rewardflow.settings.run_settings import RunSettings

TOP: Final = ""  # the section of keys that are in none
LIMITS: Final = "limits"
FREE: Final = ("reward", "reward_kwargs")  # keys whose values have keys of the user's own


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
    """The records behind each section, in the tree's order; the agent's settings are two records.

    A section inside another has a dotted name.
    """
    return {TOP: (RunSettings,), **_inside(TOP, RunSettings)}


def _inside(section: str, record: type[Any]) -> dict[str, tuple[type[Any], ...]]:
    """The sections that a record has as fields, each followed by those inside it."""
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
    """The section that a section stands in."""
    return section.rpartition(".")[0]


def field_of(section: str) -> dataclasses.Field[Any]:
    """Of the record that a section stands in; its default says whether the section may be left out."""
    (record,) = sections()[outer_of(section)]
    return next(field for field in dataclasses.fields(record) if field.name == section.rpartition(".")[2])


@functools.cache
def keys() -> Mapping[str, Key]:
    """All of them by name, section by section; a section itself is none."""
    return {
        key.name: key for section, records in sections().items() for record in records for key in _of(section, record)
    }


def keys_of(section: str) -> list[Key]:
    return [key for key in keys().values() if key.section == section]


def nearest(name: str) -> str:
    """What somebody may have meant who wrote this: for messages."""
    section, _, field = name.rpartition(".")
    everywhere = {key.field: key.name for key in reversed(list(keys().values()))}  # the first of a name counts
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
    return next((known[match] for match in difflib.get_close_matches(name, known, n=1)), None)


def _of(section: str, record: type[Any]) -> Sequence[Key]:
    hints = typing.get_type_hints(record)
    prefix = f"{section}." if section else ""
    told = {} if section == LIMITS else explanations(record)
    return [
        Key(prefix + field.name, hints[field.name], _default(field), told.get(field.name, ""))
        for field in dataclasses.fields(record)
        if prefix + field.name not in sections()
    ]


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
