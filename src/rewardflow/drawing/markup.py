"""HTML and SVG that cannot be broken by the text in it.

Always true: text becomes markup only through `escaped`, so that a browser shows it and never obeys it; no element has
an event handler or a style of its own, so that a strict content security policy can forbid both.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable
from typing import TypeAlias

from rewardflow.errors import InvalidInput

_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*")
# Characters that no HTML file may hold, or that make text look like other text than it is: controls but for tab and
# line feed, and marks that turn the direction of writing.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffe\uffff\ud800-\udfff]")
_VOID = frozenset({"meta", "br", "hr", "input", "link"})


class Markup(str):
    """Text that is markup already. Made by `tag` and `escaped`; whoever makes one by hand vouches for it."""

    __slots__ = ()


Child: TypeAlias = "str | Markup | Iterable[Child] | None"
Value: TypeAlias = "str | int | float | bool | None"


def escaped(text: str) -> Markup:
    return text if isinstance(text, Markup) else Markup(html.escape(visible(text), quote=True))


def visible(text: str) -> str:
    """The text with a sign in place of every character that cannot be shown or would hide what is there."""
    return _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n").replace("\r", "\n"))


def joined(children: Iterable[Child]) -> Markup:
    return Markup("".join(_flat(children)))


def tag(name: str, /, *children: Child, **attributes: Value) -> Markup:
    """`tag("a", "text", class_="x", data_step=3)`; None leaves an attribute out, True gives it no value."""
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
    """For coordinates: a tenth of a thousandth of a pixel is as good as exact, and shorter."""
    if not math.isfinite(value):
        raise InvalidInput(f"a coordinate must be finite, got {value!r}")
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text
