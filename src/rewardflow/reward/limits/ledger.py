"""Counts what calls cost, per step and per run, and stops calls before they can pass the cap.

Always true: spent + uncertain + reserved <= cap, across restarts and `kill -9`, as long as no call costs more than it
reserved. A call reserves `call_cost_usd` if that is set, else the upper bound that its reward tells (`cost_bound_usd`).
A call that told no cost, or broke off after it told some, counts as its reservation: what it did not tell stays
uncertain, because the service may have charged for it.

Where a reward tells no bound, a call reserves the largest cost that its account has told, and twice that while other
calls of the account are in flight. At most as many of these calls are in flight as answers have told a cost, and one
until the first has. Calls that reserved nothing, because no cost was known, count as the first cost that is told.

The bound, in every case: spending passes the cap by no more than the sum of (cost - reservation) over the calls that
cost more than they reserved and were in flight when the last call started, or never told their cost. So where each
call costs at most r times its reservation, spending stays below r times the cap. After a call that cost more than it
reserved, the calls of its account in flight count as at least that cost, and later ones reserve at least that much.

With a journal the reservations are on disk before the calls go out: see `journal_allowance.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rewardflow.reward.journal.reservations import Reservation
from rewardflow.reward.limits.journal_allowance import Allowance, Reserve

logger = logging.getLogger(__name__)

_ROUNDING = 1e-9  # three times 0.1 must fit into 0.3


@dataclass(frozen=True, slots=True)
class LedgerStatistics:
    spent_usd: float
    uncertain_usd: float
    reserved_usd: float
    tokens: int
    cap_usd: float | None
    by_step_usd: Mapping[int, float]
    cached_tokens: int = 0
    cache_saved_usd: float = 0.0


class _Account:
    """What the ledger knows about the costs of one account."""

    __slots__ = (
        "allowance",
        "counted_reserved_usd",
        "counted_uncertain_usd",
        "largest_usd",
        "least_usd",
        "num_out",
        "num_told",
        "num_unpriced",
        "reclaimable_usd",
        "reserved_usd",
        "saved_usd",
        "spent_usd",
        "uncertain_usd",
    )

    def __init__(self, before: Reservation, allowance: Allowance | None) -> None:
        self.allowance = allowance
        self.num_out = 0
        self.num_told = 0
        self.num_unpriced = before.num_unpriced  # ended without telling a cost, before any cost was known
        self.largest_usd = before.largest_usd
        self.least_usd = 0.0  # the largest cost of a call that cost more than it had reserved
        self.reserved_usd = 0.0
        self.spent_usd = before.spent_usd
        self.saved_usd = 0.0  # the part of spent_usd that verdicts in the journal hold
        self.uncertain_usd = before.uncertain_usd
        self.reclaimable_usd = before.uncertain_usd  # the part of it that is not taken back
        self.counted_reserved_usd = 0.0  # reserved_usd, or more after a call that cost more than it reserved
        self.counted_uncertain_usd = before.uncertain_usd

    @property
    def exposure_usd(self) -> float:
        """The money that the journal's verdicts do not show: it would be unknown after a `kill -9`."""
        return self.spent_usd - self.saved_usd + self.counted_uncertain_usd + self.counted_reserved_usd


class Ledger:
    """The costs of one agent. Each account has its own prices, so a free rule does not reserve the judge's price."""

    def __init__(
        self,
        *,
        cap_usd: float | None,
        call_cost_usd: float | None,
        already_spent_usd: float = 0.0,
        already_uncertain_usd: float = 0.0,
        before: Sequence[Reservation] = (),
        reserve: Reserve | None = None,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        """`before` is what earlier sessions of the run left; `already_...` are the sums of it and of all verdicts.

        `reserve` writes reservations to the journal; the ledger calls `on_change` when one is on disk or failed.
        """
        self.cap_usd = cap_usd
        self.needs_bounds = cap_usd is not None and call_cost_usd is None
        self._fixed_usd = call_cost_usd
        self._before = {one.account: one for one in before}
        self.follows_others = bool(before)  # earlier sessions left something
        self._reserve = reserve if cap_usd is not None else None
        self._on_change = on_change
        self._accounts: dict[str, _Account] = {name: self._new_account(name) for name in self._before}
        self._spent_usd = already_spent_usd
        self._uncertain_usd = already_uncertain_usd
        self._reserved_usd = 0.0
        self._tokens = 0
        self._cached_tokens = 0
        self._cache_saved_usd = 0.0
        self._num_out = 0
        self._by_step_usd: dict[int, float] = {}

    def _new_account(self, name: str) -> _Account:
        before = self._before.get(name) or Reservation(name)
        reserve = self._reserve
        return _Account(before, None if reserve is None else Allowance(before, reserve, self._on_change))

    def _account(self, name: str) -> _Account:
        known = self._accounts.get(name)
        if known is None:
            known = self._accounts[name] = self._new_account(name)
        return known

    def add_before(self, spent_usd: float, rows: Sequence[Reservation]) -> None:
        """Counts what saved verdicts have cost, and what earlier sessions left beside them, for new accounts."""
        self._spent_usd += spent_usd
        for row in rows:
            if row.account not in self._accounts:
                self._before[row.account] = row
                self.follows_others = True
                self._accounts[row.account] = self._new_account(row.account)
                self._spent_usd += row.spent_usd
                self._uncertain_usd += row.uncertain_usd

    @property
    def num_out(self) -> int:
        return self._num_out

    @property
    def room_usd(self) -> float:
        cap_usd = float("inf") if self.cap_usd is None else self.cap_usd
        return cap_usd - self._spent_usd - self._uncertain_usd - self._reserved_usd

    @property
    def is_waiting_for_journal(self) -> bool:
        """Whether a reservation is on its way to the disk; `on_change` follows."""
        return any(one.allowance is not None and one.allowance.is_asked for one in self._accounts.values())

    def may_start(self, account: str, bound_usd: float | None = None) -> bool:
        """Whether a call fits under the cap. If only the journal lacks its reservation, asks the journal for more."""
        if self.cap_usd is None:
            return True
        known = self._account(account)
        base_usd = bound_usd if self._fixed_usd is None else self._fixed_usd
        if base_usd is None and known.num_out >= max(1, known.num_told):
            return False
        price_usd = self._price_usd(known, base_usd)
        if base_usd == price_usd == 0:
            return True  # free, also when the cap is reached
        room_usd, rounding_usd = self.room_usd, _ROUNDING * self.cap_usd
        # A cap that is already reached also stops calls of unknown price.
        if room_usd < price_usd - rounding_usd or room_usd <= rounding_usd:
            return False
        if known.allowance is None:
            return True
        num_unpriced = known.num_unpriced + (known.num_out + 1 if price_usd == 0 else 0)
        return known.allowance.covers(
            known.exposure_usd,
            price_usd,
            in_flight_usd=known.counted_reserved_usd,
            room_usd=room_usd,
            num_unpriced=num_unpriced,
            largest_usd=known.largest_usd,
        )

    @property
    def is_journaled(self) -> bool:
        """Whether the reservations of calls are in the journal."""
        return self._reserve is not None

    def is_reclaimable(self, account: str) -> bool:
        """Whether earlier sessions left uncertain costs, of which a part may belong to calls that are found again."""
        known = self._accounts.get(account)
        return known is not None and known.reclaimable_usd > 0

    def reclaim(self, account: str, reserved_usd: float) -> None:
        """Takes back what an earlier session reserved for a call that is found again: it reserves and tells anew.

        Without this, a killed session's calls would count twice: as uncertain, and as what they cost.
        """
        known = self._account(account)
        taken_usd = min(reserved_usd, known.reclaimable_usd)
        known.reclaimable_usd -= taken_usd
        known.uncertain_usd = max(0.0, known.uncertain_usd - taken_usd)
        self._recount(known)

    def next_price_usd(self, account: str, bound_usd: float | None = None) -> float:
        """Returns what the next call would reserve."""
        return self._price_usd(self._account(account), bound_usd if self._fixed_usd is None else self._fixed_usd)

    def start(self, account: str, bound_usd: float | None = None) -> float:
        """Reserves money for one call and returns the amount; pass it to `settle`."""
        known = self._accounts.get(account) or self._account(account)
        if self.cap_usd is None:
            price_usd = known.largest_usd if self._fixed_usd is None else self._fixed_usd
        else:
            price_usd = self._price_usd(known, bound_usd if self._fixed_usd is None else self._fixed_usd)
        known.num_out += 1
        self._num_out += 1
        if price_usd:
            known.reserved_usd += price_usd
            self._recount(known)
        return price_usd

    def assumed_cost_usd(self) -> float | None:
        """Returns what an answered call costs that told no cost, if the settings say so."""
        return self._fixed_usd

    def settle(
        self,
        account: str,
        reserved_usd: float,
        step: int,
        cost_usd: float,
        tokens: int,
        *,
        is_told: bool,
        is_uncertain: bool = False,
    ) -> None:
        """Counts a call that ended. `is_told`: its whole cost is known. `is_uncertain`: it may have cost more."""
        known = self._accounts[account]
        known.num_out -= 1
        self._num_out -= 1
        if is_told:
            known.num_told += 1
        if cost_usd or tokens:
            self._count(known, reserved_usd, step, cost_usd, tokens)
        if not reserved_usd and self.cap_usd is None:
            return  # nothing to give back, and no cap for which the call could count
        if is_uncertain:
            self._doubt(account, known, reserved_usd, cost_usd)
        if known.num_unpriced and known.largest_usd:
            known.uncertain_usd += known.num_unpriced * known.largest_usd
            known.num_unpriced = 0
        is_changed = known.uncertain_usd != known.counted_uncertain_usd
        if reserved_usd or cost_usd or is_changed or known.counted_reserved_usd:
            known.reserved_usd = known.reserved_usd - reserved_usd if known.num_out else 0.0
            self._recount(known)

    def count_cached(self, cached_tokens: int, saved_usd: float) -> None:
        """Counts tokens that a service took from its cache of prompts, and what that saved."""
        self._cached_tokens += cached_tokens
        self._cache_saved_usd += saved_usd

    def settle_nothing(self, account: str) -> None:
        """Counts the end of a call that reserved and told nothing, without a cap: the usual case, so it is quick."""
        self._accounts[account].num_out -= 1
        self._num_out -= 1

    def _doubt(self, account: str, known: _Account, reserved_usd: float, cost_usd: float) -> None:
        known.uncertain_usd += max(0.0, reserved_usd - cost_usd)
        if reserved_usd == 0 and known.num_unpriced == 0 and not known.largest_usd:
            logger.warning(
                "%s: a call told no cost, and no price is known, so under max_cost_usd calls go one at a time until "
                "one tells its cost; set call_cost_usd, or report cost_usd=0.0 if calls are free",
                account,
            )
        known.num_unpriced += reserved_usd == 0

    def saved(self, account: str, cost_usd: float) -> None:
        """Notes that verdicts of this cost are on disk."""
        self._account(account).saved_usd += cost_usd

    def closing_reservations(self) -> list[Reservation]:
        """Returns what the journal's verdicts do not show, exactly; for the end, when no call is in flight."""
        rows = []
        for name, known in self._accounts.items():
            is_stored = name in self._before or (known.allowance is not None and known.allowance.is_stored)
            unsaved_usd = known.spent_usd - known.saved_usd
            if abs(unsaved_usd) < _ROUNDING * known.spent_usd:  # a sum of the same costs in another order
                unsaved_usd = 0.0
            row = Reservation(
                name,
                spent_usd=max(0.0, unsaved_usd),
                uncertain_usd=known.uncertain_usd,
                num_unpriced=known.num_unpriced,
                largest_usd=known.largest_usd,
            )
            if is_stored or row.spent_usd or row.uncertain_usd:
                rows.append(row)
        return rows

    def closed(self, rows: Sequence[Reservation]) -> None:
        """Notes that these `closing_reservations` were written; later calls need new reservations."""
        for row in rows:
            allowance = self._accounts[row.account].allowance
            if allowance is not None:
                allowance.replaced(row)

    def statistics(self) -> LedgerStatistics:
        return LedgerStatistics(
            self._spent_usd,
            self._uncertain_usd,
            self._reserved_usd,
            self._tokens,
            self.cap_usd,
            dict(self._by_step_usd),
            self._cached_tokens,
            self._cache_saved_usd,
        )

    def _price_usd(self, known: _Account, base_usd: float | None) -> float:
        if base_usd is not None:
            return max(base_usd, known.least_usd)
        return 2 * known.largest_usd if known.num_out else known.largest_usd

    def _count(self, known: _Account, reserved_usd: float, step: int, cost_usd: float, tokens: int) -> None:
        self._spent_usd += cost_usd
        self._tokens += tokens
        self._by_step_usd[step] = self._by_step_usd.get(step, 0.0) + cost_usd
        known.spent_usd += cost_usd
        known.largest_usd = max(known.largest_usd, cost_usd)
        if cost_usd > reserved_usd * (1 + _ROUNDING):
            known.least_usd = max(known.least_usd, cost_usd)

    def _recount(self, known: _Account) -> None:
        """Brings the sums up to date. A call in flight counts as at least what another one cost beyond its bound."""
        reserved_usd, uncertain_usd = known.reserved_usd, known.uncertain_usd
        if self.cap_usd is not None:
            reserved_usd = max(reserved_usd, known.num_out * known.least_usd)
        self._reserved_usd += reserved_usd - known.counted_reserved_usd
        self._uncertain_usd += uncertain_usd - known.counted_uncertain_usd
        known.counted_reserved_usd, known.counted_uncertain_usd = reserved_usd, uncertain_usd
        if not self._num_out:
            self._reserved_usd = 0.0  # rounding must not add up
