"""The allowance on disk covers the calls in flight, and grows in blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from rewardflow.reward.journal.reservations import Reservation
from rewardflow.reward.limits.ledger import Ledger


class Disk:
    """Takes reservations, and answers when it is told to."""

    def __init__(self, *, is_full: bool = False) -> None:
        self.rows: dict[str, Reservation] = {}
        self.num_writes = 0
        self.is_full = is_full
        self._waiting: list[tuple[Sequence[Reservation], Callable[[bool], None]]] = []

    def reserve(self, rows: Sequence[Reservation], done: Callable[[bool], None]) -> None:
        self._waiting.append((rows, done))

    def answer(self) -> None:
        waiting, self._waiting = self._waiting, []
        for rows, done in waiting:
            if not self.is_full:
                self.rows |= {row.account: row for row in rows}
                self.num_writes += 1
            done(not self.is_full)

    @property
    def stored_usd(self) -> float:
        return sum(row.spent_usd + row.uncertain_usd for row in self.rows.values())


def ledger_on(disk: Disk, *, cap_usd: float = 100.0, call_cost_usd: float | None = 1.0) -> Ledger:
    return Ledger(cap_usd=cap_usd, call_cost_usd=call_cost_usd, reserve=disk.reserve, on_change=lambda: None)


def fill(ledger: Ledger, disk: Disk, slots: int) -> list[float]:
    out: list[float] = []
    while len(out) < slots:
        if ledger.may_start("judge"):
            out.append(ledger.start("judge"))
        elif ledger.is_waiting_for_journal:
            disk.answer()
        else:
            break
    return out


def test_a_call_waits_until_its_reservation_is_on_disk() -> None:
    disk = Disk()
    ledger = ledger_on(disk)
    assert not ledger.may_start("judge")
    assert ledger.is_waiting_for_journal
    disk.answer()
    assert ledger.may_start("judge")
    assert not ledger.is_waiting_for_journal


def test_filling_64_slots_takes_a_few_writes_and_going_on_takes_none() -> None:
    disk = Disk()
    ledger = ledger_on(disk, cap_usd=10_000.0)
    out = fill(ledger, disk, 64)
    assert disk.num_writes <= 14
    assert 64.0 <= disk.stored_usd <= 64.0 * 1.3
    num_before = disk.num_writes
    for _ in range(1000):
        ledger.settle("judge", out.pop(), 0, 0.9, 0, is_told=True)
        ledger.saved("judge", 0.9)
        out += fill(ledger, disk, 1)
    assert disk.num_writes == num_before


def test_a_block_is_never_larger_than_the_room_under_the_cap() -> None:
    disk = Disk()
    assert len(fill(ledger_on(disk, cap_usd=6.5), disk, 64)) == 6
    assert disk.stored_usd <= 6.5


def test_calls_of_unknown_price_are_counted_on_disk() -> None:
    disk = Disk()
    ledger = ledger_on(disk, call_cost_usd=None)
    for _ in range(5):
        (reserved_usd,) = fill(ledger, disk, 1)
        ledger.settle("judge", reserved_usd, 0, 0.0, 0, is_told=False, is_uncertain=True)
    assert disk.rows["judge"].num_unpriced >= 5
    again = Ledger(cap_usd=100.0, call_cost_usd=None, before=list(disk.rows.values()))
    again.settle("judge", again.start("judge"), 0, 2.0, 0, is_told=True)
    assert again.statistics().uncertain_usd >= 10.0


def test_no_call_starts_while_its_reservation_cannot_be_written() -> None:
    disk = Disk(is_full=True)
    ledger = ledger_on(disk)
    for _ in range(3):
        assert not ledger.may_start("judge")
        disk.answer()
    disk.is_full = False
    assert not ledger.may_start("judge")
    disk.answer()
    assert ledger.may_start("judge")


@given(st.floats(1.0, 50.0), st.integers(1, 30), st.randoms(use_true_random=False))
def test_what_is_on_disk_covers_everything_that_no_saved_verdict_shows(cap_usd: float, slots: int, rng) -> None:
    disk = Disk()
    ledger = ledger_on(disk, cap_usd=cap_usd)
    out: list[float] = []
    true_usd = unsaved_usd = saved_usd = 0.0
    for _ in range(200):
        act = rng.random()
        if act < 0.5 and len(out) < slots and ledger.may_start("judge"):
            out.append(ledger.start("judge"))
            true_usd += 1.0  # charged when it arrives
        elif act < 0.6:
            disk.answer()
        elif act < 0.8 and out:
            is_told = rng.random() < 0.7
            cost_usd = 1.0 if is_told else 0.0
            ledger.settle("judge", out.pop(), 0, cost_usd, 0, is_told=is_told, is_uncertain=not is_told)
            unsaved_usd += cost_usd
        elif unsaved_usd:
            ledger.saved("judge", unsaved_usd)
            saved_usd, unsaved_usd = saved_usd + unsaved_usd, 0.0
        assert true_usd <= saved_usd + disk.stored_usd * (1 + 1e-6)
        assert true_usd <= cap_usd * (1 + 1e-6)
