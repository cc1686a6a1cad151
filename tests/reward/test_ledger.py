"""The cap is never passed while prices are known, and an unknown price is asked for once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.reward.ledger import Ledger


@given(st.floats(0.01, 10), st.floats(0.001, 1), st.integers(1, 50), st.randoms(use_true_random=False))
def test_with_a_known_price_spent_and_reserved_never_pass_the_cap(cap: float, price: float, slots: int, rng) -> None:
    ledger = Ledger(cap_usd=cap, call_cost_usd=price)
    out: list[float] = []
    for _ in range(300):
        if len(out) < slots and ledger.may_start() and rng.random() < 0.7:
            out.append(ledger.start())
        elif out:
            ledger.settle(out.pop(), step=0, cost_usd=price * rng.random(), tokens=0)
        statistics = ledger.statistics()
        assert statistics.spent_usd + statistics.reserved_usd <= cap * (1 + 1e-9)


def test_before_any_price_is_known_one_call_is_out_at_a_time() -> None:
    ledger = Ledger(cap_usd=1.0, call_cost_usd=None)
    assert ledger.may_start()
    reserved = ledger.start()
    assert not ledger.may_start()
    ledger.settle(reserved, step=0, cost_usd=0.3, tokens=10)
    ledger.start()
    ledger.start()
    assert not ledger.may_start(), "0.3 spent and twice 0.3 reserved leave no room for a fourth"


def test_what_an_earlier_session_spent_counts() -> None:
    assert not Ledger(cap_usd=1.0, call_cost_usd=0.1, already_spent_usd=0.95).may_start()


def test_costs_are_kept_by_step() -> None:
    ledger = Ledger(cap_usd=None, call_cost_usd=None)
    for step, cost_usd in ((0, 0.1), (1, 0.2), (1, 0.3)):
        ledger.settle(ledger.start(), step=step, cost_usd=cost_usd, tokens=5)
    statistics = ledger.statistics()
    assert statistics.by_step_usd == {0: pytest.approx(0.1), 1: pytest.approx(0.5)}
    assert statistics.tokens == 15


def test_without_a_cap_nothing_is_held_back() -> None:
    ledger = Ledger(cap_usd=None, call_cost_usd=None)
    assert all(ledger.may_start() and ledger.start() == 0.0 for _ in range(1000))
