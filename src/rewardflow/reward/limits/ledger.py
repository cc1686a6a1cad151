"""Counts what calls cost, per step and per run, and stops calls before they can pass the cap.

Always true: spent + uncertain + reserved <= cap, as long as no call costs more than it reserved.

A call reserves `call_cost_usd` if that is set, else the largest cost seen on its account. Until the account's first
answer only one of its calls is in flight, so that an unknown price cannot be paid a thousand times. A call that was
made and reported no cost counts as `call_cost_usd`. A call that ended without an answer keeps its reservation as
uncertain, because the service may still charge for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LedgerStatistics:
    spent_usd: float
    uncertain_usd: float
    reserved_usd: float
    tokens: int
    cap_usd: float | None
    by_step_usd: Mapping[int, float]


class _Account:
    """What the ledger knows about the prices of one account."""

    __slots__ = ("largest_usd", "num_out", "was_answered")

    def __init__(self) -> None:
        self.largest_usd = 0.0
        self.num_out = 0
        self.was_answered = False


class Ledger:
    """The costs of one agent. Each account has its own prices, so a free rule does not reserve the judge's price."""

    def __init__(self, *, cap_usd: float | None, call_cost_usd: float | None, already_spent_usd: float = 0.0) -> None:
        self.cap_usd = cap_usd
        self._fixed_usd = call_cost_usd
        self._accounts: defaultdict[str, _Account] = defaultdict(_Account)
        self._spent_usd = already_spent_usd
        self._uncertain_usd = 0.0
        self._reserved_usd = 0.0
        self._tokens = 0
        self._num_out = 0
        self._by_step_usd: defaultdict[int, float] = defaultdict(float)

    @property
    def num_out(self) -> int:
        return self._num_out

    def may_start(self, account: str) -> bool:
        if self.cap_usd is None:
            return True
        known = self._accounts[account]
        if self._fixed_usd is None and not known.was_answered and known.num_out > 0:
            return False
        room_usd = self.cap_usd - self._spent_usd - self._uncertain_usd - self._reserved_usd
        rounding_usd = 1e-9 * self.cap_usd  # three times 0.1 must fit into 0.3
        # A cap that is already reached also stops calls of unknown price.
        return room_usd >= self._price_usd(known) - rounding_usd and room_usd > rounding_usd

    def start(self, account: str) -> float:
        """Reserves money for one call and returns the amount; pass it to `settle`."""
        known = self._accounts[account]
        price_usd = self._price_usd(known)
        known.num_out += 1
        self._num_out += 1
        self._reserved_usd += price_usd
        return price_usd

    def cost_of(self, reported_usd: float) -> float:
        """Returns the cost of an answered call: the reported cost, or else `call_cost_usd`."""
        return reported_usd or self._fixed_usd or 0.0

    def settle(
        self, account: str, reserved_usd: float, step: int, cost_usd: float, tokens: int, *, was_answered: bool
    ) -> None:
        known = self._accounts[account]
        known.num_out -= 1
        self._num_out -= 1
        self._reserved_usd = self._reserved_usd - reserved_usd if self._num_out else 0.0
        if was_answered:
            known.was_answered = True
        if cost_usd or tokens:
            self._spent_usd += cost_usd
            self._tokens += tokens
            self._by_step_usd[step] += cost_usd
            known.largest_usd = max(known.largest_usd, cost_usd)

    def doubt(self, reserved_usd: float) -> None:
        """Records a call that ended without reporting a cost: its reservation may have been spent."""
        self._uncertain_usd += reserved_usd

    def statistics(self) -> LedgerStatistics:
        return LedgerStatistics(
            self._spent_usd,
            self._uncertain_usd,
            self._reserved_usd,
            self._tokens,
            self.cap_usd,
            dict(self._by_step_usd),
        )

    def _price_usd(self, known: _Account) -> float:
        return known.largest_usd if self._fixed_usd is None else self._fixed_usd
