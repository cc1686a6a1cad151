"""Reads the costs of verdicts from the table and from its index `verdicts_by_run`: each shows what the other lost.

Always true: a verdict counts in every run that either of the two names, with the largest cost that either holds. So
while one of them shows a verdict as it was written, no sum is smaller than what was paid. A page of the table that
cannot be read leaves the index alone to count for its rows; an index that cannot be read raises.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from rewardflow.reward.journal.database import text_of, texts_as_bytes
from rewardflow.reward.journal.verdict_rows import as_text

_SUM_TOLERANCE: Final = 1e-9  # sums in another order differ in their last digits
_INDEX_ORDER: Final = "run, cost_usd, cost_copy_usd"  # makes SQLite read the index alone


@dataclass(frozen=True, slots=True)
class RowCosts:
    """What the verdicts of one run have cost, as the table and the index show it together."""

    usd: float
    num_unlike: int = 0  # rows that only one of the two shows, or with another cost or run than the other
    num_unknown: int = 0  # rows of which neither shows a cost


def index_is_proven(connection: sqlite3.Connection, run: str | None) -> bool:
    """Whether the table holds as many verdicts of the run, at the same sum, as the index; `run=None`: of each run."""
    in_index = _figures(connection, "verdicts", run)
    try:
        in_table = _figures(connection, "verdicts NOT INDEXED", run)
    except sqlite3.DatabaseError:
        return False
    return in_index.keys() == in_table.keys() and all(
        in_index[name][0] == count and math.isclose(in_index[name][1], usd, rel_tol=_SUM_TOLERANCE)
        for name, (count, usd) in in_table.items()
    )


def _figures(connection: sqlite3.Connection, source: str, run: str | None) -> dict[str, tuple[int, float]]:
    """Returns the number of verdicts and the sum of their costs by run."""
    figures = "count(*), total(cost_usd)"
    if run is not None:
        (found,) = connection.execute(f"SELECT {figures} FROM {source} WHERE run = ?", (as_text(run),))
        return {run: found}
    sums: dict[str, tuple[int, float]] = {}
    with texts_as_bytes(connection):
        rows = connection.execute(f"SELECT run, {figures} FROM {source} GROUP BY run").fetchall()
    for name, count, usd in rows:  # a broken index may show the same run in several places
        before = sums.get(text_of(name), (0, 0.0))
        sums[text_of(name)] = (before[0] + count, before[1] + usd)
    return sums


def costs_by_row(connection: sqlite3.Connection) -> dict[str, RowCosts]:
    """Returns what the verdicts of each run have cost; reads every row from both."""
    with texts_as_bytes(connection):
        query = f"SELECT rowid, run, cost_usd, cost_copy_usd FROM verdicts ORDER BY {_INDEX_ORDER}"
        in_index = {row_id: (text_of(run), costs) for row_id, run, *costs in connection.execute(query)}
        in_table = {row_id: (text_of(run), cost) for row_id, run, cost in _table(connection)}
    usd: defaultdict[str, list[float]] = defaultdict(list)
    num_unlike: defaultdict[str, int] = defaultdict(int)
    num_unknown: defaultdict[str, int] = defaultdict(int)
    for row_id in in_index.keys() | in_table.keys():
        name, costs = in_index.get(row_id, (None, []))
        table_name, table_cost = in_table.get(row_id, (None, None))
        known = [float(cost) for cost in (*costs, table_cost) if is_cost(cost)]
        for its_run in {one for one in (name, table_name) if one is not None}:
            usd[its_run].append(max(known, default=0.0))
            num_unlike[its_run] += name != table_name or costs[0] != table_cost
            num_unknown[its_run] += not known
    return {name: RowCosts(math.fsum(usd[name]), num_unlike[name], num_unknown[name]) for name in usd}


def _table(connection: sqlite3.Connection) -> Iterator[Any]:
    """Yields the rows of the table; of a broken one, those up to the broken page from both ends."""
    for direction in ("ASC", "DESC"):
        with contextlib.suppress(sqlite3.DatabaseError):
            yield from connection.execute(
                f"SELECT rowid, run, cost_usd FROM verdicts NOT INDEXED ORDER BY rowid {direction}"
            )
            return


def is_cost(value: object) -> bool:
    return isinstance(value, float | int) and 0.0 <= value < math.inf
