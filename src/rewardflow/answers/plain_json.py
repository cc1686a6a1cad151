"""JSON for whatever a row holds.

Always true: `json_text` never refuses a value that was read from JSON or parquet, and gives valid JSON: NaN becomes
null, and what JSON has no form for becomes its text.
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
