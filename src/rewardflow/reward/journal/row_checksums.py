"""Computes the checksums of a journal's row, which show that it changed on disk after it was written.

Always true: a row has the same checksums when it is written and when it is read again, as texts or as bytes. A change
of one byte, or of several within four neighbouring ones, is always seen; a larger one all but once in 4 billion times.
They guard against broken disks and careless edits, not against somebody who computes them again.

`verdict_crc32` covers what a lookup returns, the key and the verdict's document, so that a lookup need not read long
prompts; `rest_crc32` covers all other columns. Both are NULL in rows of earlier versions.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

TableRow = tuple[bytes | str | float | int | None, ...]

CHECKSUM_COLUMNS: Final = "verdict_crc32, rest_crc32"

_KEY: Final = 0
_VERDICT: Final = -2


def row_checksums(row: Sequence[bytes | str | float | int | None]) -> tuple[int, int]:
    """Returns both checksums of the values in the order of `COLUMNS`."""
    rest = values_checksum((*row[_KEY + 1 : _VERDICT], *row[_VERDICT + 1 :]))
    return verdict_checksum(_bytes_of(row[_KEY]), _bytes_of(row[_VERDICT])), rest


def values_checksum(values: Sequence[bytes | str | float | int | None]) -> int:
    return zlib.crc32(b"\xff".join(map(_bytes_of, values)))


def verdict_checksum(key: bytes, document: bytes) -> int:
    return zlib.crc32(document, zlib.crc32(key))


def _bytes_of(value: bytes | str | float | int | None) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if value is None or value != value:  # SQLite stores NaN as NULL
        return b"\xfe"
    return repr(value + 0.0 if isinstance(value, float) else value).encode()  # SQLite turns -0.0 into 0.0
