"""Looking a name up in one of the tables of this package.

Always true: a name that no table has is the caller's mistake, and the answer lists the names there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from rewardflow.errors import InvalidInput

Entry = TypeVar("Entry")


def look_up(what: str, name: str, table: Mapping[str, Entry]) -> Entry:
    """The entry of this name; `what` says in an error what was being chosen."""
    if name not in table:
        raise InvalidInput(f"{what} must be one of {', '.join(table)}, got {name!r}")
    return table[name]
