"""Writes any value of a row as JSON.

Always true: `json_text` accepts every value that was read from JSON or parquet and returns valid JSON: NaN becomes
null, and a value that JSON cannot hold becomes its text.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

from rewardflow.observe.events import plain

_OPTIONS = orjson.OPT_NON_STR_KEYS


def json_text(value: Any) -> str:
    try:
        return orjson.dumps(value, default=plain, option=_OPTIONS).decode()
    except TypeError:  # broken unicode, or an integer beyond 64 bits
        return json.dumps(plain(value))
