"""The cap is never passed while prices are known, and one call at a time finds out an unknown price."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.reward.limits.ledger import Ledger


def settle(
    ledger: Ledger,
    reserved_usd: float,
    cost_usd: float,
    *,
    account: str = "judge",
    step: int = 0,
    tokens: int = 0,
    was_answered: bool = True,
) -> None:
    ledger.settle(account, reserved_usd, step, cost_usd, tokens, was_answered=was_answered)


@given(st.floats(0.01, 10), st.floats(0.001, 1), st.integers(1, 50), st.randoms(use_true_random=False))
def test_with_a_known_price_spent_and_reserved_never_pass_the_cap(cap: float, price: float, slots: int, rng) -> None:
    ledger = Ledger(cap_usd=cap, call_cost_usd=price)
    out: list[float] = []
    for _ in range(300):
        if len(out) < slots and ledger.may_start("judge") and rng.random() < 0.7:
            out.append(ledger.start("judge"))
        elif out:
            reserved = out.pop()
            if rng.random() < 0.2:
                ledger.doubt(reserved)
                settle(ledger, reserved, 0.0)
            else:
                settle(ledger, reserved, price * rng.random())
        seen = ledger.statistics()
        assert seen.spent_usd + seen.uncertain_usd + seen.reserved_usd <= cap * (1 + 1e-8)


def test_before_any_price_is_known_one_call_is_out_at_a_time() -> None:
    ledger = Ledger(cap_usd=1.0, call_cost_usd=None)
    assert ledger.may_start("judge")
    reserved = ledger.start("judge")
    assert not ledger.may_start("judge")
    settle(ledger, reserved, 0.0, was_answered=False)
    reserved = ledger.start("judge")
    assert not ledger.may_start("judge"), "a call that failed told nothing of the price"
    settle(ledger, reserved, 0.3)
    ledger.start("judge")
    ledger.start("judge")
    assert not ledger.may_start("judge"), "0.3 spent and twice 0.3 reserved leave no room for a fourth"


def test_prices_are_kept_apart_by_account() -> None:
    ledger = Ledger(cap_usd=1.0, call_cost_usd=None)
    settle(ledger, ledger.start("judge"), 0.9)
    assert not ledger.may_start("judge")
    settle(ledger, ledger.start("rule"), 0.0, account="rule")
    assert ledger.may_start("rule"), "a free rule need not fit the judge's price"


def test_a_call_that_never_reported_a_cost_counts_towards_the_cap() -> None:
    ledger = Ledger(cap_usd=1.0, call_cost_usd=0.5)
    for _ in range(2):
        reserved = ledger.start("judge")
        ledger.doubt(reserved)
        settle(ledger, reserved, 0.0, was_answered=False)
    assert not ledger.may_start("judge")
    assert (ledger.statistics().spent_usd, ledger.statistics().uncertain_usd) == (0.0, 1.0)


def test_what_an_earlier_session_spent_counts() -> None:
    assert not Ledger(cap_usd=1.0, call_cost_usd=0.1, already_spent_usd=0.95).may_start("judge")


def test_costs_are_kept_by_step() -> None:
    ledger = Ledger(cap_usd=None, call_cost_usd=None)
    for step, cost_usd in ((0, 0.1), (1, 0.2), (1, 0.3)):
        settle(ledger, ledger.start("judge"), cost_usd, step=step, tokens=5)
    statistics = ledger.statistics()
    assert statistics.by_step_usd == {0: pytest.approx(0.1), 1: pytest.approx(0.5)}
    assert statistics.tokens == 15


def test_without_a_cap_nothing_is_held_back() -> None:
    ledger = Ledger(cap_usd=None, call_cost_usd=None)
    assert all(ledger.may_start("judge") and ledger.start("judge") == 0.0 for _ in range(1000))
