"""Looks a name up in one of the tables of this package.

Always true: an unknown name raises `InvalidInput`, which lists the known names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from rewardflow.errors import InvalidInput

Entry = TypeVar("Entry")


def look_up(what: str, name: str, table: Mapping[str, Entry]) -> Entry:
    """Returns the entry of this name; `what` names the setting in the error."""
    if name not in table:
        raise InvalidInput(f"{what} must be one of {', '.join(table)}, got {name!r}")
    return table[name]
