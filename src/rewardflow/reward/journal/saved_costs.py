"""Sums up what the verdicts of a journal have cost.

Always true: a cost that was changed after it was written never makes the sum smaller. A row holds its cost twice, in
`cost_usd` and in `cost_copy_usd`; where the two differ, the larger one counts, which is at least what was paid if one
of them is as it was written. Rows of earlier versions have no copy and are believed.

The index `verdicts_by_run` holds both, so that SQLite sums up and compares without reading the rows. Where a cap counts
on the sums, they are proven: the table must show the same, and where it does not, `costs_by_row` counts.
"""

from __future__ import annotations

import logging
import math
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rewardflow.errors import JournalError
from rewardflow.reward.journal.costs_by_row import costs_by_row, index_is_proven, is_cost
from rewardflow.reward.journal.database import text_of
from rewardflow.reward.journal.verdict_rows import COST_IS_WHOLE, as_text

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SavedCosts:
    usd: float
    num_changed: int = 0  # rows whose cost differs from its copy
    num_unknown: int = 0  # of these: neither is a cost
    num_unlike: int = 0  # rows that the table and its index show differently; looked for only in proven sums

    def warn_of_changes(self, path: Path) -> None:
        if self.num_changed:
            logger.error(
                "journal %s: the costs of %d verdicts changed on disk; the larger of each cost and its copy counts, "
                "and their calls are made again; `rewardflow journal check --repair` restores what was written",
                path,
                self.num_changed,
            )
        if self.num_unlike:
            logger.error(
                "journal %s: the table of verdicts and its index differ in %d rows, because the file changed on disk; "
                "of each the larger cost counts; `rewardflow journal check` names what is broken, and with --repair "
                "keeps the rest",
                path,
                self.num_unlike,
            )

    def require_known(self, path: Path) -> None:
        """Raises if a cost is not known, because then nobody knows what is left of a cap."""
        if self.num_unknown:
            raise JournalError(
                f"a journal must hold its money as it was written when there is a cap, got {self.num_unknown} verdicts "
                f"in {path} whose cost is no number; `rewardflow journal check {path}` names them"
            )


_SUMS: Final = f"total(CASE WHEN {COST_IS_WHOLE} THEN cost_usd END), total(NOT {COST_IS_WHOLE})"


def read_saved_costs(connection: sqlite3.Connection, run: str | None, *, proven: bool = False) -> SavedCosts:
    """Returns what the verdicts of a run have cost; with `run=None`, those of all runs.

    `proven` compares the index with the table, which reads all rows as far as their costs.
    """
    saved = _indexed_costs(connection, run)
    if not proven or index_is_proven(connection, run):
        return saved
    by_run = costs_by_row(connection)
    counted = [costs for name, costs in by_run.items() if run is None or name == as_text(run)]
    return SavedCosts(
        math.fsum(costs.usd for costs in counted),
        saved.num_changed,
        sum(costs.num_unknown for costs in counted),
        sum(costs.num_unlike for costs in counted),
    )


def _indexed_costs(connection: sqlite3.Connection, run: str | None) -> SavedCosts:
    where, values = ("true", ()) if run is None else ("run = ?", (as_text(run),))
    whole_usd, num_changed = connection.execute(f"SELECT {_SUMS} FROM verdicts WHERE {where}", values).fetchone()
    if not num_changed:
        return SavedCosts(float(whole_usd))
    query = f"SELECT cost_usd, cost_copy_usd FROM verdicts WHERE {where} AND NOT {COST_IS_WHOLE}"
    larger = [max(filter(is_cost, pair), default=None) for pair in connection.execute(query, values)]
    known = [float(usd) for usd in larger if usd is not None]
    return SavedCosts(math.fsum([whole_usd, *known]), len(larger), len(larger) - len(known))


def spent_by_run_usd(connection: sqlite3.Connection, *, proven: bool = False) -> dict[str, float]:
    """Returns what the verdicts of each run have cost."""
    if proven and not index_is_proven(connection, None):
        return {name: costs.usd for name, costs in costs_by_row(connection).items()}
    spent: dict[str, float] = {}
    for run, whole_usd, num_changed in connection.execute(f"SELECT run, {_SUMS} FROM verdicts GROUP BY run").fetchall():
        name = text_of(run)
        spent[name] = _indexed_costs(connection, name).usd if num_changed else float(whole_usd)
    return spent
