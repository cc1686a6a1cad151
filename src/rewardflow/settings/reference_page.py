"""Writes the Markdown reference of every key, which is the part of docs/configuration.md below the introduction.

Always true: the reference is generated from the records, so its keys, types and defaults are correct.

    python -m rewardflow.settings.reference_page docs/configuration.md     # rewrites the part between the two marks
"""

from __future__ import annotations

import json
import sys
import types
import typing
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, Union

from rewardflow.errors import InvalidInput
from rewardflow.settings.run_keys import LIMITS, Key, keys_of, sections

START: Final = "<!--- the reference starts here; it is written by python -m rewardflow.settings.reference_page -->\n"
END: Final = "<!--- the reference ends here -->\n"

_WORDS: dict[Any, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    type(None): "null",
    PathLike: "path",
}


def reference() -> str:
    """Returns one table for each section."""
    return "\n".join(_section(name) for name in sections() if name != LIMITS)


def with_reference(page: str) -> str:
    """Returns the page with the current reference between the two marks."""
    if page.count(START) != 1 or page.count(END) != 1:
        raise InvalidInput(f"a page must have the line {START.strip()!r} and later {END.strip()!r}, each once")
    before, _, rest = page.partition(START)
    return f"{before}{START}\n{reference()}\n{END}{rest.partition(END)[2]}"


def _section(section: str) -> str:
    title = f"## `{section}`" if section else "## The run"
    (record,) = sections()[section]
    lines = [title, "", *(record.__doc__ or "").strip().splitlines(), "", "| key | type | default | meaning |"]
    lines = [line.strip() for line in lines]
    return "\n".join([*lines, "|---|---|---|---|", *map(_row, keys_of(section)), ""])


def _row(key: Key) -> str:
    default = "required" if key.is_required else f"`{_shown(key.default)}`"
    return f"| `{key.name}` | {type_in_words(key.hint)} | {default} | {key.explanation} |"


def type_in_words(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin in (Union, types.UnionType):
        # Path fields are written `str | PathLike[str]`.
        words = [type_in_words(one) for one in arguments if not (one is str and PathLike[str] in arguments)]
        return " or ".join(dict.fromkeys(words))
    if origin is Literal:
        return ", ".join(f"`{one}`" for one in arguments)
    if origin in _WORDS:
        return _WORDS[origin]
    if origin is tuple and arguments[-1] is not Ellipsis:
        return f"list of {len(arguments)}: {', '.join(map(type_in_words, arguments))}"
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f"list of {type_in_words(arguments[0])}"
    return "mapping"


def _shown(value: Any) -> str:
    """Formats a value as YAML, of which JSON is a subset."""
    return value if isinstance(value, str) else json.dumps(value)


def main(arguments: Sequence[str]) -> None:
    for name in arguments:
        page = Path(name)
        page.write_text(with_reference(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
