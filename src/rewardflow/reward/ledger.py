"""What the calls cost: per step, per run, and a cap that stops before it is passed.

Always true: spent + reserved <= cap, as long as no call costs more than it reserved. A call reserves `call_cost_usd`
if that is set, else the largest cost seen so far; before any cost is known only one call is out at a time, so that an
unknown price cannot be paid a thousand times. A call that was made and told no cost is taken to have cost
`call_cost_usd`, so that the cap also holds for rewards that report nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LedgerStatistics:
    spent_usd: float
    reserved_usd: float
    tokens: int
    cap_usd: float | None
    by_step_usd: Mapping[int, float]


class Ledger:
    def __init__(self, *, cap_usd: float | None, call_cost_usd: float | None, already_spent_usd: float = 0.0) -> None:
        self._cap_usd = cap_usd
        self._fixed_usd = call_cost_usd
        self._largest_usd = 0.0
        self._spent_usd = already_spent_usd
        self._reserved_usd = 0.0
        self._tokens = 0
        self._num_out = 0
        self._num_settled = 0
        self._by_step_usd: defaultdict[int, float] = defaultdict(float)

    @property
    def spent_usd(self) -> float:
        return self._spent_usd

    @property
    def cap_usd(self) -> float | None:
        return self._cap_usd

    @property
    def num_out(self) -> int:
        return self._num_out

    def may_start(self) -> bool:
        if self._cap_usd is None:
            return True
        if self._fixed_usd is None and self._num_settled == 0 and self._num_out > 0:
            return False
        price_usd = self._price_usd()
        # A cap already reached stops even calls whose price is not known yet.
        room_usd = self._cap_usd - self._spent_usd - self._reserved_usd
        rounding_usd = 1e-9 * self._cap_usd  # three times 0.1 must fit into 0.3
        return room_usd >= price_usd - rounding_usd and room_usd > rounding_usd

    def start(self) -> float:
        """Reserve for one call; give the returned amount back to `settle`."""
        price_usd = self._price_usd()
        self._reserved_usd += price_usd
        self._num_out += 1
        return price_usd

    def cost_of(self, reported_usd: float) -> float:
        """What a call that was made has cost: what it told, or else `call_cost_usd`."""
        return reported_usd or self._fixed_usd or 0.0

    def settle(self, reserved_usd: float, step: int, cost_usd: float, tokens: int) -> None:
        self._num_out -= 1
        self._num_settled += 1
        self._reserved_usd = max(0.0, self._reserved_usd - reserved_usd) if self._num_out else 0.0
        if cost_usd or tokens:
            self._spent_usd += cost_usd
            self._tokens += tokens
            self._by_step_usd[step] += cost_usd
            self._largest_usd = max(self._largest_usd, cost_usd)

    def statistics(self) -> LedgerStatistics:
        return LedgerStatistics(
            self._spent_usd, self._reserved_usd, self._tokens, self._cap_usd, dict(self._by_step_usd)
        )

    def _price_usd(self) -> float:
        return self._largest_usd if self._fixed_usd is None else self._fixed_usd
