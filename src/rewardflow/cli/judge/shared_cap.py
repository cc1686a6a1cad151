"""Shares the `--max-cost-usd` of `rewardflow judge test` among its judges, which run one after another.

Always true: a judge may spend what the cap leaves after all that the other judges have spent or may have spent, in this
session and in earlier ones on the same journals. A cap in a judge's own file holds for that judge alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rewardflow.reward.journal.reader import JournalReader
from rewardflow.reward.limits.ledger import LedgerStatistics

_NOTHING_USD = 1e-9  # a cap must be positive; free calls go on under it


class SharedCap:
    """The money of several judges. `journals` has the journal of each, by the judge's name; None for no journal."""

    def __init__(self, cap_usd: float | None, journals: Mapping[str, Path | None]) -> None:
        self.cap_usd = cap_usd
        self._used_usd: dict[str, float] = {}
        for name, path in journals.items() if cap_usd is not None else ():
            if path is not None and path.exists() and path.stat().st_size:
                with JournalReader(path) as journal:
                    self._used_usd[name] = journal.used_usd(name)

    def options_for(self, name: str) -> dict[str, Any]:
        """Returns the agent's option for this judge; none if the command has no cap."""
        if self.cap_usd is None:
            return {}
        return {"max_cost_usd": max(_NOTHING_USD, self.cap_usd - self._used_by_others_usd(name))}

    def used_by_others(self, name: str) -> str | None:
        """Says what the other judges have used of the cap, if they have."""
        others_usd = self._used_by_others_usd(name)
        if self.cap_usd is None or not others_usd:
            return None
        return f"of max_cost_usd={self.cap_usd:g} the other judges have used {others_usd:.6g} USD"

    def _used_by_others_usd(self, name: str) -> float:
        return sum(usd for other, usd in self._used_usd.items() if other != name)

    def count(self, name: str, money: LedgerStatistics) -> None:
        """Notes what a judge has used when its calls are over."""
        self._used_usd[name] = money.spent_usd + money.uncertain_usd + money.reserved_usd
