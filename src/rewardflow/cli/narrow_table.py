"""Fits a table into a narrow terminal: leaves out whole columns instead of cutting every cell.

Always true: a cell is shown whole or its column is not shown; the columns that are wanted most stay, and at least the
first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_GAP = 2  # characters between two columns


@dataclass(frozen=True, slots=True)
class FittedTable:
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: tuple[str, ...]  # the headings of the columns for which there was no room


def fitted(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, width: int, first_to_go: Sequence[str]
) -> FittedTable:
    """Leaves out the columns of `first_to_go`, one after another, until the rest fits into `width` characters."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(headings, *rows, strict=True)]
    kept = list(range(len(headings)))
    for heading in first_to_go:
        if sum(widths[place] + _GAP for place in kept) - _GAP <= width:
            break
        kept = [place for place in kept if headings[place] != heading]
    return FittedTable(
        headings=tuple(headings[place] for place in kept),
        rows=tuple(tuple(row[place] for place in kept) for row in rows),
        left_out=tuple(heading for place, heading in enumerate(headings) if place not in kept),
    )
