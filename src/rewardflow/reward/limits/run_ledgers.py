"""Counts what each run costs at agents that serve several runs, and keeps each run below its own cap.

Always true: for a run with a cap, spent + uncertain + reserved <= cap, as long as no call costs more than it reserved
(`ledger.py` has the rules). A call that does not fit waits until calls of its run have told their costs; when none is
out, it fails with the kind `budget`. It never holds up the calls of other runs. Several agents may share these ledgers,
so that a run's cap holds for all of them together. What a run had spent before comes from the agents' journals, which
also hold the reservations of calls before they go out, so that a run's cap holds across `kill -9`.
"""

from __future__ import annotations

import asyncio
import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rewardflow.reward.journal.reservations import Reservation
from rewardflow.reward.limits.ledger import Ledger, LedgerStatistics
from rewardflow.types import EMPTY

if TYPE_CHECKING:
    from rewardflow.reward.journal.verdict_journal import Journal


class RunLedgers:
    """One ledger for each run."""

    def __init__(self, caps_usd: Mapping[str, float] = EMPTY) -> None:
        self._caps_usd = caps_usd
        self._ledgers: dict[str, Ledger] = {}
        self._loaded: set[Path] = set()
        self._journals: dict[str, Journal] = {}  # by account
        self._held_back: defaultdict[str, list[Callable[[], None]]] = defaultdict(list)

    @property
    def has_caps(self) -> bool:
        return bool(self._caps_usd)

    def open(self, journal: Journal) -> None:
        """Adds what the runs had spent before, once for each journal: an agent may open again after a halt."""
        if journal.path in self._loaded:
            return
        if self.has_caps:
            journal.require_known_money()
        self._loaded.add(journal.path)
        spent_usd, left = journal.spent_by_run_usd, journal.stored_money.of_run_caps
        for run in spent_usd.keys() | left.keys():
            self.of(run).add_before(spent_usd.get(run, 0.0), left.get(run, ()))

    def keep_in(self, journal: Journal, accounts: Iterable[str]) -> None:
        """Keeps the reservations of these accounts in the journal."""
        self._journals.update(dict.fromkeys(accounts, journal))

    def close(self, journal: Journal) -> None:
        """Replaces the reservations in the journal by the exact sums; for the end, when no call is in flight."""
        for run in self._caps_usd:
            rows = [row for row in self.of(run).closing_reservations() if self._journals.get(row.account) is journal]
            if rows:
                journal.reserve_of_run(run, rows, lambda _: None)
                self.of(run).closed(rows)
        self._journals = {account: one for account, one in self._journals.items() if one is not journal}

    def of(self, run: str) -> Ledger:
        known = self._ledgers.get(run)
        if known is None:
            known = self._ledgers[run] = Ledger(
                cap_usd=self._caps_usd.get(run),
                call_cost_usd=None,
                reserve=functools.partial(self._reserve, run),
                on_change=functools.partial(self.call_ended, run),
            )
        return known

    def _reserve(self, run: str, rows: Sequence[Reservation], reserved: Callable[[bool], None]) -> None:
        """Writes rows of one account; without a journal they are kept by the process alone."""
        journal = self._journals.get(rows[0].account)
        if journal is not None:
            journal.reserve_of_run(run, rows, reserved)
        else:
            asyncio.get_running_loop().call_soon(reserved, True)

    def saved(self, run: str, account: str, cost_usd: float) -> None:
        """Notes that a verdict of this cost is on disk."""
        if (ledger := self.capped(run)) is not None:
            ledger.saved(account, cost_usd)

    def capped(self, run: str) -> Ledger | None:
        """Returns the ledger of a run with a cap."""
        return self.of(run) if run in self._caps_usd else None

    def hold_back(self, run: str, again: Callable[[], None]) -> None:
        """Calls `again` when a call of the run has ended, or a reservation of it is on disk."""
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
        runs = {*self._ledgers, *self._caps_usd}
        return {run: self.of(run).statistics() for run in sorted(runs)}
