"""Reads tables of rows from files and from data sets of the `datasets` package, which is an extra.

Always true: every row of a table has named columns, and no row is silently left out: a file with bad rows raises an
error that lists their lines and problems. Nothing imports `datasets` or downloads before a data set is read.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from rewardflow.answers.answer_row import Unreadable
from rewardflow.answers.row_files import read_rows
from rewardflow.errors import InvalidInput
from rewardflow.extras import import_extra

_MAX_LINES_NAMED = 5
_MAX_COLUMNS_NAMED = 20


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row and its position: `line` counts from 1, lines of a JSONL file or rows of any other source."""

    line: int
    columns: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows from one file or data set, whose `name` appears in messages."""

    name: str
    rows: Sequence[TableRow]

    @property
    def columns(self) -> tuple[str, ...]:
        """All column names of all rows, in order of appearance."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row.columns))


def read_file(path: str | PathLike[str], *, limit: int | None = None) -> Table:
    """Reads the first `limit` rows of a JSONL or parquet file, or all of them."""
    if not Path(path).is_file():
        raise InvalidInput(f"the file of prompts must exist, got {path}")
    return table_of(str(path), itertools.islice(read_rows(path), limit))


def read_dataset(name: str, split: str, *, limit: int | None = None, load: Callable[..., Any] | None = None) -> Table:
    """Reads a data set. `name` is one of the hub or a folder, followed by `:configuration` if it has several.

    `load` replaces `datasets.load_dataset`.
    """
    load = load or import_extra("datasets", "datasets", f"data.dataset={name}").load_dataset
    place, _, configuration = name.partition(":")
    try:
        rows = load(place, configuration or None, split=split)
    except (OSError, ValueError) as error:  # what datasets raises for a wrong name, configuration or split
        raise InvalidInput(f"data.dataset must be one that datasets can load, got {name}: {error}") from error
    return table_of(f"{name} ({split})", enumerate(itertools.islice(rows, limit), start=1))


def table_of(name: str, lines: Iterable[tuple[int, Any]]) -> Table:
    rows, problems = [], []
    for line, row in lines:
        if isinstance(row, Unreadable):
            problems.append((line, row.why))
        elif not isinstance(row, Mapping):
            problems.append((line, f"a row must be an object with named columns, got {row!r:.80}"))
        else:
            rows.append(TableRow(line, row))
    refuse(name, problems)
    if not rows:
        raise InvalidInput(f"{name} must have at least one row, got none")
    return Table(name, rows)


def refuse(name: str, problems: Sequence[tuple[int, str]]) -> None:
    """Raises an error that lists the problems with their lines, if there are any."""
    if problems:
        named = "; ".join(f"line {line}: {why}" for line, why in problems[:_MAX_LINES_NAMED])
        more = len(problems) - _MAX_LINES_NAMED
        rest = f"; and {more:,} more bad rows" if more > 0 else ""
        raise InvalidInput(f"{name}, {named}{rest}")


def names_shown(columns: Sequence[str]) -> str:
    shown = ", ".join(columns[:_MAX_COLUMNS_NAMED]) or "no columns"
    return f"{shown} and {len(columns) - _MAX_COLUMNS_NAMED} more" if len(columns) > _MAX_COLUMNS_NAMED else shown
