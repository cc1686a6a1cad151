"""Counts what each run costs at agents that serve several runs, and keeps each run below its own cap.

Always true: for a run with a cap, spent + uncertain + reserved <= cap, as long as no call costs more than it reserved
(`ledger.py` has the rules). A call that does not fit waits until calls of its run have told their costs; when none is
out, it fails with the kind `budget`. It never holds up the calls of other runs. Several agents may share these ledgers,
so that a run's cap holds for all of them together. What a run had spent before comes from the agents' journals; calls
that were in flight when a process was killed count against the agent's own cap alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from rewardflow.reward.limits.ledger import Ledger, LedgerStatistics
from rewardflow.types import EMPTY


class RunLedgers:
    """One ledger for each run."""

    def __init__(self, caps_usd: Mapping[str, float] = EMPTY) -> None:
        self._caps_usd = caps_usd
        self._ledgers: dict[str, Ledger] = {}
        self._spent_before_usd: defaultdict[str, float] = defaultdict(float)
        self._loaded: set[str] = set()
        self._held_back: defaultdict[str, list[Callable[[], None]]] = defaultdict(list)

    @property
    def has_caps(self) -> bool:
        return bool(self._caps_usd)

    def load(self, source: str, spent_usd: Mapping[str, float]) -> None:
        """Adds what the runs had spent before, once for each source: an agent may open again after a halt."""
        if source in self._loaded:
            return
        self._loaded.add(source)
        for run, cost_usd in spent_usd.items():
            self._spent_before_usd[run] += cost_usd
            if run in self._ledgers:
                self._ledgers[run].add_spent(cost_usd)

    def of(self, run: str) -> Ledger:
        known = self._ledgers.get(run)
        if known is None:
            known = self._ledgers[run] = Ledger(
                cap_usd=self._caps_usd.get(run),
                call_cost_usd=None,
                already_spent_usd=self._spent_before_usd.get(run, 0.0),
            )
        return known

    def capped(self, run: str) -> Ledger | None:
        """Returns the ledger of a run with a cap."""
        return self.of(run) if run in self._caps_usd else None

    def hold_back(self, run: str, again: Callable[[], None]) -> None:
        """Calls `again` when a call of the run has ended."""
        self._held_back[run].append(again)

    def call_ended(self, run: str) -> None:
        if run in self._held_back:
            for again in self._held_back.pop(run):
                again()

    def over_cap(self, run: str, price_usd: float) -> str:
        """Says why a run's call was not made."""
        money = self.of(run).statistics()
        parts = [f"spent so far: {money.spent_usd:.6g} USD"]
        if money.uncertain_usd:
            parts.append(f"uncertain: {money.uncertain_usd:.6g} USD")
        if price_usd:
            parts.append(f"reserved for the next call: {price_usd:.6g} USD")
        return f"the next call of run {run!r} could pass its cap of {money.cap_usd:g} USD, {'; '.join(parts)}"

    def statistics(self) -> dict[str, LedgerStatistics]:
        runs = {*self._ledgers, *self._caps_usd, *self._spent_before_usd}
        return {run: self.of(run).statistics() for run in sorted(runs)}
