"""Builds HTML and SVG in which no text can become markup.

Always true: text becomes markup only through `escaped`, so that a browser shows it and never runs it; no element has
an event handler or a style attribute, so that a strict content security policy can forbid both.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable
from typing import TypeAlias

from rewardflow.errors import InvalidInput

_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*")
# Characters that HTML forbids or that disguise a text: control characters except tab and line feed, and marks that
# change the direction of writing.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffe\uffff\ud800-\udfff]")
_VOID = frozenset({"meta", "br", "hr", "input", "link"})


class Markup(str):
    """Text that is markup. `tag` and `escaped` make it; code that makes one by hand must have escaped the text."""

    __slots__ = ()


Child: TypeAlias = "str | Markup | Iterable[Child] | None"
Value: TypeAlias = "str | int | float | bool | None"


def escaped(text: str) -> Markup:
    return text if isinstance(text, Markup) else Markup(html.escape(visible(text), quote=True))


def visible(text: str) -> str:
    """Replaces every character that cannot be shown, or that hides others, with a visible sign."""
    return _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n").replace("\r", "\n"))


def joined(children: Iterable[Child]) -> Markup:
    return Markup("".join(_flat(children)))


def tag(name: str, /, *children: Child, **attributes: Value) -> Markup:
    """Makes an element: `tag("a", "text", class_="x", data_step=3)`. None omits an attribute, True omits its value."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"the name of an element must be letters, digits and dashes, got {name!r}")
    opening = f"<{name}{''.join(_attribute(key, value) for key, value in attributes.items())}>"
    return Markup(opening if name in _VOID else f"{opening}{joined(children)}</{name}>")


def _flat(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, str):
            yield escaped(child)
        else:
            yield from _flat(child)


def _attribute(key: str, value: Value) -> str:
    name = key.rstrip("_").replace("_", "-")
    if not _NAME.fullmatch(name) or name.lower().startswith("on") or name.lower() == "style":
        raise InvalidInput(f"an attribute must be neither an event handler nor a style, got {name!r}")
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    return f' {name}="{escaped(number(value) if isinstance(value, float) else str(value))}"'


def number(value: float) -> str:
    """Writes a coordinate with at most two decimals: exact enough for pixels, and shorter."""
    if not math.isfinite(value):
        raise InvalidInput(f"a coordinate must be finite, got {value!r}")
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text
