"""Makes text from models, judges and files fit to be shown on a terminal.

Always true: the text that `safe` returns holds no secret and no control character but newline and tab.
"""

from __future__ import annotations

import unicodedata
from typing import Final

from rewardflow.observe.redact import redact

_END_CHARS: Final = 120  # of a shortened text: the place of a `user_error` is its end


def safe(text: str) -> str:
    """Removes secrets and escapes control characters."""
    return printable(redact(text), keep="\n\t")


def printable(text: str, keep: str = "") -> str:
    """Escapes the characters that could control a terminal or cannot be seen, except those of `keep`."""
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() or char in keep or unicodedata.category(char) == "Zs"
        else char.encode("unicode_escape").decode()
        for char in text
    )


def shortened(text: str, room: int) -> str:
    """Leaves the middle out of a text that is longer than `room`, or its end, where there is little room for both."""
    if len(text) <= room:
        return text
    end = _END_CHARS if room >= 2 * _END_CHARS else 0
    return f"{text[: room - 1 - end]}…{text[len(text) - end :]}"
