"""Parses one override of verl's command line: `key=value`, `+key=value`, `++key=value` or `~key`.

Always true: writing a parsed override gives the same text again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rewardflow.errors import InvalidInput

_WORD = re.compile(r"(?P<mark>\+\+|\+|~)?(?P<key>[^=\s+~][^=\s]*)(?:=(?P<value>.*))?", re.DOTALL)
_NEEDS_NO_QUOTES = re.compile(r"[\w./:@%+-]+")
_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


@dataclass(frozen=True, slots=True)
class VerlOverride:
    """`mark` is empty, `+` (adds a key), `++` (adds or changes) or `~` (removes)."""

    key: str
    value: str | None
    mark: str = ""

    @classmethod
    def parse(cls, word: str) -> VerlOverride:
        match = _WORD.fullmatch(word.strip())
        if match is None or (match["value"] is None and match["mark"] != "~"):
            raise InvalidInput(f"a verl setting must read key=value, +key=value or ~key, got {word!r}")
        return cls(match["key"], match["value"], match["mark"] or "")

    def __str__(self) -> str:
        return f"{self.mark}{self.key}" if self.value is None else f"{self.mark}{self.key}={self.value}"

    @property
    def text(self) -> str:
        """The value without the quotes that protected it."""
        value = (self.value or "").strip()
        is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        return value[1:-1] if is_quoted else value

    def has_reference(self) -> bool:
        """Whether the value refers to another one (`${...}`), so that it is known only in the whole configuration."""
        return "${" in self.text

    def is_true(self) -> bool:
        value = self.text.lower()
        if value in _TRUE or value in _FALSE:
            return value in _TRUE
        raise InvalidInput(f"{self.key} must be True or False, got {self.text!r}")


def quoted(text: str) -> str:
    """Quotes text as a value for Hydra, which gives commas, brackets and other characters a meaning."""
    if _NEEDS_NO_QUOTES.fullmatch(text):
        return text
    return "'" + text.replace("'", "\\'") + "'"
