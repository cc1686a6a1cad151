"""Loads what run files, plans and reward files share: a YAML mapping, and `key=value` overrides on the command line.

Always true: an error about a file starts with the path of the file; an error about an override names the override.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardflow.errors import InvalidInput
from rewardflow.settings.strict_yaml import parse_yaml, read_yaml
from rewardflow.settings.typed_values import at, shown


def read_mapping(path: Path, *, what: str) -> Mapping[Any, Any]:
    """Reads a YAML file whose top level must be a mapping. `what` names the kind of file in the error."""
    with at(str(path)):
        document = read_yaml(path)
        if not isinstance(document, Mapping):
            raise InvalidInput(f"{what} must be a mapping, got {shown('', document)}")
    return document


@dataclass(frozen=True, slots=True)
class Override:
    """One `key=value` of the command line. The key is dotted; the value is parsed YAML."""

    key: str
    value: Any

    @property
    def names(self) -> list[str]:
        """The parts of the dotted key, outermost first."""
        return self.key.split(".")


def parse_override(text: str) -> Override:
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise InvalidInput(f"an override must be key=value, got {shown('', text)}")
    if not all(key.split(".")):
        raise InvalidInput(f"the key of an override must have a name between its dots, got {key}")
    return Override(key, parse_yaml(value, what=f"the value of the override {key}"))
