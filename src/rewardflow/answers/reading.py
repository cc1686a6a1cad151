"""Reads a file of answers, JSONL or parquet.

Always true: every row of the file comes out once, in the file's order, as an `Answer` or a `BadRow`; a bad row stops
nothing. Only a file that cannot be read at all is an error.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import orjson

from rewardflow.answers import parquet
from rewardflow.answers.grouping import grouped
from rewardflow.answers.rows import Answer, BadRow, Draft, draft_of
from rewardflow.errors import InvalidInput
from rewardflow.types import EMPTY

Format = Literal["jsonl", "parquet"]

_FORMATS: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".pq": "parquet"}
_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_answers(path: str | PathLike[str]) -> Iterator[Answer | BadRow]:
    """Every row of the file. All of it is read before the first row comes, because groups may lie anywhere in it."""
    read = _read_jsonl if check_format(path) == "jsonl" else _read_parquet
    yield from grouped(list(read(Path(path))))


def check_format(path: str | PathLike[str]) -> Format:
    """By the file's ending; also makes sure that what its format needs is installed."""
    suffix = Path(path).suffix.lower()
    if suffix not in _FORMATS:
        raise InvalidInput(f"a file of answers or verdicts must end in one of {', '.join(_FORMATS)}, got {path}")
    if _FORMATS[suffix] == "parquet":
        parquet.check_installed()
    return _FORMATS[suffix]


def first_rows(rows: Sequence[Answer | BadRow], count: int) -> list[Answer | BadRow]:
    """The first `count` rows, and of later ones those that complete their groups: half a group is another question."""
    if count < 1:
        raise InvalidInput(f"the number of rows must be at least 1, got {count}")
    started = {_place(row) for row in rows[:count] if isinstance(row, Answer)}
    later = [row for row in rows[count:] if isinstance(row, Answer) and _place(row) in started]
    return [*rows[:count], *later]


def _place(answer: Answer) -> tuple[int, str]:
    return answer.rollout.step, answer.rollout.group_id


def _read_parquet(path: Path) -> Iterator[Draft | BadRow]:
    return (draft_of(number, row) for number, row in enumerate(parquet.read_rows(path), start=1))


def _read_jsonl(path: Path) -> Iterator[Draft | BadRow]:
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            text = (text.removeprefix(_BYTE_ORDER_MARK) if number == 1 else text).strip()
            if not text:
                continue
            try:
                row = _parse(text)
            except orjson.JSONDecodeError as error:
                yield BadRow(number, EMPTY, f"a line must be valid JSON: {error.msg} (column {error.colno})")
            else:
                yield draft_of(number, row)


def _parse(text: bytes) -> Any:
    """Also what Python's own writer lets pass and JSON does not: NaN, and halves of surrogate pairs from policies."""
    try:
        row = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        try:
            return json.loads(text, parse_constant=lambda _: None)
        except (ValueError, RecursionError):
            raise error from None
    if _LONG_NUMBER.search(text):
        # Beyond 64 bits orjson gives floats, and a reference answer that lost its last digits is another one.
        with contextlib.suppress(ValueError, RecursionError):  # Python reads no number of thousands of digits
            return json.loads(text)
    return row
