"""Reads the fields of JSON lines: a missing field has a default, a field of the wrong type is an error with its place.

Always true: every number that is returned is finite, so that everything computed from it can be drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewardflow.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object, and the file and line that it came from."""

    data: Mapping[str, Any]
    where: str

    def number(self, name: str) -> float | None:
        """Returns a number, or None if it is missing or null; the files write null for a number that is not finite."""
        value = self.data.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, "a number", value)
        return float(value) if math.isfinite(value) else None

    def count(self, name: str) -> int:
        return int(self.number(name) or 0)

    def text(self, name: str) -> str:
        value = self.data.get(name)
        return "" if value is None else str(value)

    def numbers(self, name: str) -> list[float | None]:
        inner = self._members(name)
        return [inner.number(key) for key in inner.data]

    def texts(self, name: str) -> list[str]:
        return [str(value) for value in self._list(name)]

    def inner(self, name: str) -> Fields:
        value = self.data.get(name)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self._wrong(name, "an object", value)
        return Fields(value, f"{self.where}, {name}")

    def all_inner(self, name: str) -> list[Fields]:
        """Returns the objects of a list."""
        listed = self._members(name)
        return [listed.inner(key) for key in listed.data]

    def by_name(self) -> dict[str, float]:
        """Returns every member that is a number."""
        found = {str(name): value for name, value in self.data.items() if isinstance(value, int | float)}
        return {n: float(v) for n, v in found.items() if not isinstance(v, bool) and math.isfinite(v)}

    def _list(self, name: str) -> Sequence[object]:
        values = self.data.get(name)
        if values is None:
            return ()
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise self._wrong(name, "a list", values)
        return values

    def _members(self, name: str) -> Fields:
        """Returns the items of a list, each with its place."""
        return Fields(dict(enumerate_names(self._list(name))), f"{self.where}, {name}")

    def _wrong(self, name: str, rule: str, value: object) -> InvalidInput:
        return InvalidInput(f"{self.where}: {name} must be {rule}, got {value!r:.80}")


def enumerate_names(values: Sequence[Any]) -> list[tuple[str, Any]]:
    return [(str(place), value) for place, value in enumerate(values)]
