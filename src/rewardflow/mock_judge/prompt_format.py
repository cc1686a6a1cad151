"""Finds the form of the answer that a prompt asks for in words, for clients that send no schema.

Always true: the result is a JSON schema of numbers and one-line texts, so that all answers are made in the same way.
If no form is found, the schema has one `score` and a `reason`.

The system's instructions are searched before the prompt. In the prompt the last form counts, because an earlier one may
be part of the text to be judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

_FORM = re.compile(r"\{[^{}]*\}")
_FIELD = re.compile(r'"([A-Za-z][\w .-]{0,60})"\s*:\s*([^,}]*)')
# "0-10", "0 to 10", "from 0 = worst to 10 = best"
_RANGE = re.compile(r"(-?\d+(?:\.\d+)?)\s*(?:=\s*\w+\s*)?(?:-|\u2013|to|and|through|\.\.+)\s*(-?\d+(?:\.\d+)?)")
_TEXT_NAME = re.compile(
    r"reason|explanation|rationale|analysis|comment|justification|feedback|why|thought", re.IGNORECASE
)
_TEXT_HINT = re.compile(r'^"|string|text|sentence|words', re.IGNORECASE)
_NO_RANGE: Final = (0.0, 1.0)


def schema_in_prompt(instructions: str, prompt: str) -> dict[str, Any]:
    """Returns the schema of the answer that this prompt asks for."""
    whole = f"{instructions}\n{prompt}"
    for text in (instructions, prompt):
        for form in reversed(_FORM.findall(text)):
            properties = dict(_properties(form, whole))
            if any(kind["type"] != "string" for kind in properties.values()):
                return {"type": "object", "properties": properties}
    return {"type": "object", "properties": {"score": _number("score", "", whole), "reason": {"type": "string"}}}


def _properties(form: str, whole: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, hint in _FIELD.findall(form):
        if _TEXT_NAME.search(name) or (_TEXT_HINT.search(hint.strip()) and not _RANGE.search(hint)):
            yield name, {"type": "string"}
        else:
            yield name, _number(name, hint, whole)


def _number(name: str, hint: str, whole: str) -> dict[str, Any]:
    """Takes the range beside the field, or else the range in a line that names the field."""
    lines = (line for line in whole.splitlines() if re.search(rf"\b{re.escape(name)}\b", line, re.IGNORECASE))
    found = next((match for text in (hint, *lines) if (match := _RANGE.search(text))), None)
    low, high = (float(found[1]), float(found[2])) if found else _NO_RANGE
    if not low < high:
        low, high = _NO_RANGE
    is_whole = low.is_integer() and high.is_integer() and high - low > 1
    return {"type": "integer" if is_whole else "number", "minimum": low, "maximum": high}
