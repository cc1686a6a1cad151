"""Reads and writes files of rows, JSONL and parquet, whatever the rows mean.

Always true: every row of a file is returned once, in the file's order, with its line; a row that cannot be read is an
`Unreadable` and does not stop the reading. A new file replaces the old one as a whole or not at all.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, Literal

import orjson

from rewardflow.answers import parquet
from rewardflow.answers.answer_row import Unreadable
from rewardflow.answers.plain_json import json_text
from rewardflow.errors import InvalidInput
from rewardflow.observe import private_file
from rewardflow.observe.nesting import MAX_DEPTH, is_too_deep

Format = Literal["jsonl", "parquet"]

_FORMATS: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".pq": "parquet"}
_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def check_format(path: str | PathLike[str]) -> Format:
    """Returns the format by the file's ending; raises if the package for that format is not installed."""
    suffix = Path(path).suffix.lower()
    if suffix not in _FORMATS:
        raise InvalidInput(f"a file of rows must end in one of {', '.join(_FORMATS)}, got {path}")
    if _FORMATS[suffix] == "parquet":
        parquet.check_installed()
    return _FORMATS[suffix]


def read_rows(path: str | PathLike[str]) -> Iterator[tuple[int, Any]]:
    """Yields line numbers from 1 with their rows: any JSON value, or `Unreadable`. Rows of parquet are dicts."""
    if check_format(path) == "parquet":
        return enumerate(parquet.read_rows(Path(path)), start=1)
    return _read_jsonl(Path(path))


def write_rows(path: str | PathLike[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Replaces the file with these rows."""
    is_parquet = check_format(path) == "parquet"
    with replacing(Path(path)) as file:
        if is_parquet:
            parquet.write_rows(file, list(rows))
        else:
            write_json_lines(file, rows)


def write_json_lines(file: BinaryIO, rows: Iterable[Mapping[str, Any]]) -> None:
    file.writelines(json_text(row).encode() + b"\n" for row in rows)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Opens a new file that replaces the old one if the block ends without an error."""
    try:
        with private_file.replacing(path) as file:
            yield file
    except OSError as error:
        raise InvalidInput(f"cannot write {path}: {error.strerror or error}") from error


def _read_jsonl(path: Path) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            text = (text.removeprefix(_BYTE_ORDER_MARK) if number == 1 else text).strip()
            if not text:
                continue
            try:
                row = _parse(text)
                if text.count(b"[") + text.count(b"{") > MAX_DEPTH and is_too_deep(row):
                    row = Unreadable(f"a row must be nested at most {MAX_DEPTH} deep, got more")
            except orjson.JSONDecodeError as error:
                row = Unreadable(f"a line must be valid JSON: {error.msg} (column {error.colno})")
            yield number, row


def _parse(text: bytes) -> Any:
    """Parses JSON, and also NaN and halves of surrogate pairs, which Python's json module writes."""
    try:
        row = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        try:
            return json.loads(text, parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            raise error from None
    if _LONG_NUMBER.search(text):
        # orjson turns integers beyond 64 bits into floats; a reference answer must not lose its last digits.
        with contextlib.suppress(ValueError, RecursionError):  # Python refuses numbers of thousands of digits
            return json.loads(text)
    return row
