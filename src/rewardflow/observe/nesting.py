"""How deep lists and objects of users may be nested.

Always true: `is_too_deep` takes a number of steps linear in the value and never recurses. Python's own functions for
nested values recurse: beyond about a thousand levels they raise RecursionError, wherever they happen to be called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MAX_DEPTH = 100


def is_too_deep(value: Any, max_depth: int = MAX_DEPTH) -> bool:
    """Whether lists, tuples and mappings are nested in each other more than `max_depth` times."""
    level = [value]
    for _ in range(max_depth + 1):
        level = [part for one in level for part in _parts(one)]
        if not level:
            return False
    return True


def _parts(value: Any) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, list | tuple) else ()
