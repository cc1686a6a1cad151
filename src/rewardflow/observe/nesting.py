"""How deep lists and objects of users, and files of strangers, may be nested.

Always true: `is_too_deep` takes a number of steps linear in the value and never recurses. Python's own functions for
nested values recurse: beyond about a thousand levels they raise RecursionError, wherever they happen to be called.
`read_json` raises ValueError instead, as for any other text that cannot be read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 100
_PLAIN = frozenset((int, float, str, bool, type(None)))  # looked up first: a body may hold millions of token ids


def is_too_deep(value: Any, max_depth: int = MAX_DEPTH) -> bool:
    """Whether lists, tuples and mappings are nested in each other more than `max_depth` times."""
    level = [value]
    for _ in range(max_depth + 1):
        holders = [one for one in level if type(one) not in _PLAIN and isinstance(one, list | tuple | Mapping)]
        if not holders:
            return False
        level = [part for one in holders for part in (one.values() if isinstance(one, Mapping) else one)]
    return True


def read_json(text: str | bytes) -> Any:
    """Returns what `json.loads` does; raises ValueError also for a text that is nested too deep for it."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
