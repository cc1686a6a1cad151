"""Computes the checksums of a journal's row, which show that it changed on disk after it was written.

Always true: a row has the same checksums when it is written and when it is read again, as texts or as bytes. A change
of one byte, or of several within four neighbouring ones, is always seen; a larger one all but once in 4 billion times.
They guard against broken disks and careless edits, not against somebody who computes them again.

`verdict_crc32` covers what a lookup returns, the key and the verdict's document, so that a lookup need not read long
prompts; `rest_crc32` covers all other columns. `cost_copy_usd` is the cost once more, so that SQLite can compare the
two while it sums up the money of a million rows. All three are NULL in rows of earlier versions.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

Value = bytes | str | float | int | None
TableRow = tuple[Value, ...]

CHECKSUM_COLUMNS: Final = "verdict_crc32, rest_crc32, cost_copy_usd"

_KEY: Final = 0
_COST: Final = -4
_VERDICT: Final = -2


def row_checksums(row: Sequence[Value]) -> tuple[int, int, Value]:
    """Returns both checksums of the values in the order of `COLUMNS`, and the copy of the cost."""
    rest = values_checksum((*row[_KEY + 1 : _VERDICT], *row[_VERDICT + 1 :]))
    return verdict_checksum(_bytes_of(row[_KEY]), _bytes_of(row[_VERDICT])), rest, row[_COST]


def with_cost(row: Sequence[Value], cost_usd: Value) -> TableRow:
    """Returns the values in the order of `COLUMNS` with another cost."""
    return (*row[:_COST], cost_usd, *row[_COST + 1 :])


def values_checksum(values: Sequence[Value]) -> int:
    return zlib.crc32(b"\xff".join(map(_bytes_of, values)))


def verdict_checksum(key: bytes, document: bytes) -> int:
    return zlib.crc32(document, zlib.crc32(key))


def _bytes_of(value: Value) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if value is None or value != value:  # SQLite stores NaN as NULL
        return b"\xfe"
    return repr(value + 0.0 if isinstance(value, float) else value).encode()  # SQLite turns -0.0 into 0.0
