"""Reads and writes rows as parquet with pyarrow, an optional dependency.

Always true: every row can be written. A column keeps its type of the source file, else gets the type that fits all of
its values, else is written as JSON text.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from rewardflow.answers.answer_row import Unreadable
from rewardflow.answers.plain_json import json_text
from rewardflow.errors import InvalidInput
from rewardflow.extras import install_command

_BATCH_ROWS = 1024

# The columns of a verdict with pyarrow's names of their types; two types have no short name.
VERDICT_TYPES: Mapping[str, str] = {
    "score": "float64",
    "status": "string",
    "kind": "string",
    "error": "string",
    "imputed": "bool",
    "components": "components",
    "explanation": "string",
    "extras": "json",
    "attempts": "int64",
    "latency_s": "float64",
    "cost_usd": "float64",
    "tokens": "int64",
    "cached": "bool",
}


def check_installed() -> None:
    if importlib.util.find_spec("pyarrow") is None:
        raise InvalidInput(f"parquet files need pyarrow, which is not installed: {install_command('parquet')}")


def read_rows(path: Path) -> Iterator[dict[str, Any] | Unreadable]:
    pyarrow, pq = _pyarrow()
    with path.open("rb") as file:
        try:
            with pq.ParquetFile(file) as table:
                for batch in table.iter_batches(batch_size=_BATCH_ROWS):
                    yield from _rows_of(batch)
        except (pyarrow.ArrowException, OSError) as error:
            raise InvalidInput(f"{path} must be a parquet file that pyarrow can read: {error}") from error


def _rows_of(batch: Any) -> list[dict[str, Any] | Unreadable]:
    """Returns the rows of a batch, one by one if a row of it cannot be read."""
    try:
        rows: list[dict[str, Any] | Unreadable] = batch.to_pylist(maps_as_pydicts="strict")
    except (ValueError, KeyError, OverflowError) as error:  # broken unicode, a repeated key, a date beyond Python's
        if batch.num_rows == 1:
            return [Unreadable(f"a row must hold values that Python can hold: {error}")]
        return [row for i in range(batch.num_rows) for row in _rows_of(batch.slice(i, 1))]
    return rows


def write_rows(file: BinaryIO, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows as they are; a column that a row lacks is null there."""
    _write(file, rows, known={}, spelled={})


def write_verdict_rows(file: BinaryIO, rows: Sequence[Mapping[str, Any]], *, source: Path | None) -> None:
    """Writes rows, each with the same verdict columns and any others; `source` is the parquet file they came from."""
    pyarrow, pq = _pyarrow()
    known = _verdict_types(pyarrow) | ({} if source is None else _types_of(pq, source))
    _write(file, rows, known=known, spelled=VERDICT_TYPES)


def _write(
    file: BinaryIO, rows: Sequence[Mapping[str, Any]], *, known: Mapping[str, Any], spelled: Mapping[str, str]
) -> None:
    """Writes rows. `known` has types of columns; the columns in `spelled` are written even if no row has them."""
    pyarrow, pq = _pyarrow()
    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row) | dict.fromkeys(spelled):
        values = [row.get(name) for row in rows]
        if spelled.get(name) == "json":
            columns[name] = _as_json_text(pyarrow, values)
        else:
            columns[name] = _column(pyarrow, values, known.get(name))
    pq.write_table(pyarrow.table(columns), file)


def _pyarrow() -> tuple[Any, Any]:
    check_installed()
    return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")


def _verdict_types(pyarrow: Any) -> dict[str, Any]:
    plain = {name: spelled for name, spelled in VERDICT_TYPES.items() if spelled not in ("components", "json")}
    types = {name: pyarrow.type_for_alias(spelled) for name, spelled in plain.items()}
    return {**types, "components": pyarrow.map_(pyarrow.string(), pyarrow.float64())}


def _types_of(pq: Any, source: Path) -> dict[str, Any]:
    """Returns the types of the source's columns, except columns that were renamed to make room for a verdict's."""
    return {field.name: field.type for field in pq.read_schema(source) if field.name not in VERDICT_TYPES}


def _column(pyarrow: Any, values: Sequence[Any], known: Any) -> Any:
    values = [_whole_text(value) if isinstance(value, str) else value for value in values]
    for kind in (known, None) if known is not None else (None,):
        try:
            column = pyarrow.array(values, type=kind)
        except (pyarrow.ArrowException, ValueError, TypeError, OverflowError):
            continue
        if not _has_empty_struct(pyarrow, column.type):
            return column
    return _as_json_text(pyarrow, values)


def _as_json_text(pyarrow: Any, values: Sequence[Any]) -> Any:
    return pyarrow.array([None if value is None else json_text(value) for value in values], type=pyarrow.string())


def _whole_text(text: str) -> str:
    """Replaces halves of surrogate pairs, which policies emit and parquet cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode()


def _has_empty_struct(pyarrow: Any, kind: Any) -> bool:
    """Returns whether a type has an object without fields, as in a column of `{}`, which parquet cannot hold."""
    if pyarrow.types.is_struct(kind) and kind.num_fields == 0:
        return True
    return any(_has_empty_struct(pyarrow, kind.field(i).type) for i in range(kind.num_fields))
