"""Converts plain data from YAML into dataclasses, by the types of their fields.

Always true: a built record has only known fields, each of its annotated type. A value that does not fit raises
`InvalidInput` with the field, the rule and the value; the value is hidden if it may be a secret. Lists become tuples
where the field allows it, so that frozen records stay frozen. Relative paths are resolved against the file's folder.
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import os
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal, NoReturn, Union

from rewardflow.errors import InvalidInput
from rewardflow.observe.redact import redact
from rewardflow.reward.settings import check_names

_SEQUENCES = (list, tuple, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_MAPPINGS = (dict, collections.abc.Mapping)
_SECRET_NAME = re.compile(r"header|key|secret|passw|auth|cookie|credential|token(?!s|izer)", re.IGNORECASE)
_WORDS: dict[Any, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


@contextlib.contextmanager
def at(where: str) -> Iterator[None]:
    """Puts `where: ` before the message of an `InvalidInput` from the block."""
    try:
        yield
    except InvalidInput as error:
        raise type(error)(f"{where}: {error}") from error


def resolve_path(folder: Path, path: str) -> str:
    """Expands `~` and resolves a relative path against the folder."""
    return os.path.join(folder, os.path.expanduser(path))


def _no_reward(_: Mapping[str, Any] | str) -> NoReturn:
    raise InvalidInput("a reward is not allowed here")


@dataclass(frozen=True, slots=True)
class ValueFitter:
    """Converts the values of one file.

    `reward` builds a reward from its name or from a mapping with `reward: name`; by default no field takes a reward.
    """

    folder: Path
    reward: Callable[[Mapping[str, Any] | str], Any] = _no_reward

    def build(self, cls: type[Any], values: Mapping[str, Any], *, beside: Sequence[str] = ()) -> Any:
        """Builds a dataclass from the values of its fields. `beside` lists more names to suggest for a misspelt one."""
        if odd := [key for key in values if not isinstance(key, str)]:
            raise InvalidInput(f"settings must have names as keys, got {odd[0]!r}")
        fields = [field for field in dataclasses.fields(cls) if field.init and not field.name.startswith("_")]
        check_names(values, [*(field.name for field in fields), *beside])
        missing = [field.name for field in fields if field.name not in values and _is_required(field)]
        if missing:
            raise InvalidInput(f"{', '.join(missing)} must be given, got {', '.join(values) or 'nothing'}")
        hints = typing.get_type_hints(cls)
        return cls(**{name: self.fit(name, value, hints.get(name, Any)) for name, value in values.items()})

    def fit(self, name: str, value: Any, hint: Any) -> Any:
        """Returns the value converted to the type, or raises."""
        origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
        if isinstance(value, Mapping) and isinstance(value.get("reward"), str) and not _takes_any_mapping(hint):
            with at(name):
                return self.reward(value)
        if origin in (Union, types.UnionType):
            return self._fit_union(name, value, arguments)
        if not _has_shape(value, hint):
            raise InvalidInput(f"{name} must be {rule(hint)}, got {shown(name, value)}{_quotes(value, hint)}")
        if origin in _SEQUENCES:
            return self._fit_items(name, value, origin, arguments)
        if origin in _MAPPINGS:
            item_hint = arguments[1] if len(arguments) == 2 else Any
            return {key: self.fit(f"{name}.{key}", item, item_hint) for key, item in value.items()}
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            with at(name):
                return self.build(hint, value)
        if _is_path(hint):
            return self.path(value)
        return value  # an int stays an int in a float field: criteria recognise a whole-number scale by it

    def path(self, value: str) -> str:
        return resolve_path(self.folder, value)

    def _fit_union(self, name: str, value: Any, alternatives: tuple[Any, ...]) -> Any:
        if isinstance(value, str) and any(typing.get_origin(hint) is Callable for hint in alternatives):
            with at(name):
                return self.reward(value)  # a field that takes functions also takes rewards by name
        # Path fields are written `str | PathLike[str]`; text for them is a path, so paths are tried first.
        for hint in sorted(alternatives, key=lambda hint: not _is_path(hint)):
            if _has_shape(value, hint):
                return self.fit(name, value, hint)
        rules = dict.fromkeys(rule(hint) for hint in alternatives)
        hints = "".join(dict.fromkeys(_quotes(value, hint) for hint in alternatives))
        raise InvalidInput(f"{name} must be {' or '.join(rules)}, got {shown(name, value)}{hints}")

    def _fit_items(self, name: str, value: list[Any], origin: Any, arguments: tuple[Any, ...]) -> Any:
        if origin is tuple and arguments and arguments[-1] is not Ellipsis:
            if len(value) != len(arguments):
                raise InvalidInput(f"{name} must be a list of {len(arguments)}, got {shown(name, value)}")
            hints = list(arguments)
        else:
            hints = [arguments[0] if arguments else Any] * len(value)
        items = [self.fit(f"{name}[{i}]", item, hint) for i, (item, hint) in enumerate(zip(value, hints, strict=True))]
        return items if origin is list else tuple(items)


def may_be_secret(name: str) -> bool:
    """Judges by the name of a setting, or by a path of names such as `headers.x-title`."""
    return _SECRET_NAME.search(name) is not None


def shown(name: str, value: Any) -> str:
    """Formats a value for a message. Hides possible secrets, and shows only the keys of a mapping."""
    if may_be_secret(name):
        return f"a {type(value).__name__}, which is not shown because it may be a secret"
    if isinstance(value, Mapping) and value:
        return f"the keys {', '.join(map(str, value))}"
    if isinstance(value, list) and any(isinstance(one, list | Mapping) for one in value):
        return f"a list of {len(value)}"
    return redact(repr(value))[:100]


def rule(hint: Any) -> str:
    """Says in words what a type asks for."""
    origin = typing.get_origin(hint) or hint
    if origin in _WORDS:
        return _WORDS[origin]
    if origin is Literal:
        return "one of " + ", ".join(map(str, typing.get_args(hint)))
    if origin in _SEQUENCES:
        return "a list"
    if origin in _MAPPINGS or dataclasses.is_dataclass(origin):
        return "a mapping"
    return "a path" if _is_path(hint) else "a mapping with `reward`"


def _has_shape(value: Any, hint: Any) -> bool:
    """Whether the outermost type matches; `fit` checks the items inside later."""
    origin = typing.get_origin(hint) or hint
    if origin is Any or origin is object:
        return True
    if origin is Literal:
        return any(value == one and type(value) is type(one) for one in typing.get_args(hint))
    if origin in (int, float):
        allowed = (int,) if origin is int else (int, float)
        return isinstance(value, allowed) and not isinstance(value, bool)
    if origin in (str, bool, type(None)):
        return isinstance(value, origin)
    if origin in _SEQUENCES:
        return isinstance(value, list)
    if origin in _MAPPINGS or dataclasses.is_dataclass(origin):
        return isinstance(value, Mapping)
    return _is_path(hint) and isinstance(value, str)


def _takes_any_mapping(hint: Any) -> bool:
    """Whether `reward` inside may be the user's own key, as in the template of a request."""
    origin = typing.get_origin(hint) or hint
    if origin in (Union, types.UnionType):
        return any(_takes_any_mapping(one) for one in typing.get_args(hint))
    return origin in (Any, object, *_MAPPINGS)


def _is_path(hint: Any) -> bool:
    origin = typing.get_origin(hint) or hint
    return isinstance(origin, type) and (origin is os.PathLike or issubclass(origin, PurePath))


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _quotes(value: Any, hint: Any) -> str:
    """Suggests quotes where YAML read 1.0, no or 2026-01-31 as another type than text."""
    is_scalar = not isinstance(value, str | list | Mapping) and value is not None
    return "; put it in quotes to make it text" if hint is str and is_scalar else ""
