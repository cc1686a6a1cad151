"""A table of rows, from wherever, with the line that each came from.

Always true: every row of a table has named columns and none was left out in silence: a file with a row that cannot be
used is refused with the lines and what is wrong with each.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from rewardflow.answers.row_files import Unreadable, read_rows
from rewardflow.errors import InvalidInput
from rewardflow.extras import import_extra

_MAX_LINES_NAMED = 5
_MAX_COLUMNS_NAMED = 20


@dataclass(frozen=True, slots=True)
class TableRow:
    """`line` counts from 1: lines of a JSONL file, rows of everything else."""

    line: int
    columns: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """`name` is for messages: the file or the data set."""

    name: str
    rows: Sequence[TableRow]

    @property
    def columns(self) -> tuple[str, ...]:
        """Every name that a row has, in the order of appearance."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row.columns))


def read_file(path: str | PathLike[str], *, limit: int | None = None) -> Table:
    """The first `limit` rows of a JSONL or parquet file, or all of them."""
    if not Path(path).is_file():
        raise InvalidInput(f"the file of prompts must exist, got {path}")
    return table_of(str(path), itertools.islice(read_rows(path), limit))


def read_dataset(name: str, split: str, *, limit: int | None = None, load: Callable[..., Any] | None = None) -> Table:
    """`name` is a data set of the hub or a folder, with `:configuration` behind it where it has several.

    `load` stands in for `datasets.load_dataset`.
    """
    load = load or import_extra("datasets", "datasets", f"data.dataset={name}").load_dataset
    place, _, configuration = name.partition(":")
    try:
        rows = load(place, configuration or None, split=split)
    except (OSError, ValueError) as error:  # as datasets tells a wrong name, configuration or split
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
    """Raise if there are problems, each with its line."""
    if problems:
        named = "; ".join(f"line {line}: {why}" for line, why in problems[:_MAX_LINES_NAMED])
        more = len(problems) - _MAX_LINES_NAMED
        rest = f"; and {more:,} more bad rows" if more > 0 else ""
        raise InvalidInput(f"{name}, {named}{rest}")


def names_shown(columns: Sequence[str]) -> str:
    shown = ", ".join(columns[:_MAX_COLUMNS_NAMED]) or "no columns"
    return f"{shown} and {len(columns) - _MAX_COLUMNS_NAMED} more" if len(columns) > _MAX_COLUMNS_NAMED else shown
