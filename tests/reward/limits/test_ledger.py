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
    is_told: bool = True,
    is_uncertain: bool = False,
) -> None:
    ledger.settle(account, reserved_usd, step, cost_usd, tokens, is_told=is_told, is_uncertain=is_uncertain)


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
                settle(ledger, reserved, 0.0, is_told=False, is_uncertain=True)
            else:
                settle(ledger, reserved, price * rng.random())
        seen = ledger.statistics()
        assert seen.spent_usd + seen.uncertain_usd + seen.reserved_usd <= cap * (1 + 1e-8)


def test_until_an_answer_tells_a_cost_one_call_is_out_at_a_time() -> None:
    ledger = Ledger(cap_usd=1.0, call_cost_usd=None)
    for _ in range(3):
        assert ledger.may_start("judge")
        reserved = ledger.start("judge")
        assert not ledger.may_start("judge"), "an answer that told no cost told nothing of the price"
        settle(ledger, reserved, 0.0, is_told=False)


def test_without_a_bound_no_more_calls_are_out_than_answers_have_told_a_cost() -> None:
    ledger = Ledger(cap_usd=100.0, call_cost_usd=None)
    for told in range(1, 5):
        settle(ledger, ledger.start("judge"), 0.1)
        out = [ledger.start("judge") for _ in range(told) if ledger.may_start("judge")]
        assert len(out) == told
        assert not ledger.may_start("judge")
        for reserved in out:
            settle(ledger, reserved, 0.1, is_told=False)


def test_without_a_bound_a_call_reserves_the_largest_cost_and_twice_that_beside_others() -> None:
    ledger = Ledger(cap_usd=100.0, call_cost_usd=None)
    settle(ledger, ledger.start("judge"), 0.25)
    settle(ledger, ledger.start("judge"), 0.125)
    assert (ledger.start("judge"), ledger.start("judge")) == (0.25, 0.5)


def test_calls_made_before_a_cost_was_known_count_as_the_first_one_told() -> None:
    ledger = Ledger(cap_usd=10.0, call_cost_usd=None)
    for _ in range(3):
        settle(ledger, ledger.start("judge"), 0.0, is_told=False, is_uncertain=True)
    assert ledger.statistics().uncertain_usd == 0.0
    settle(ledger, ledger.start("judge"), 0.5)
    assert ledger.statistics().uncertain_usd == 1.5


def test_a_reward_s_own_bound_lets_many_calls_start_at_once() -> None:
    ledger = Ledger(cap_usd=1.0, call_cost_usd=None)
    started = [ledger.start("judge", 0.125) for _ in range(100) if ledger.may_start("judge", 0.125)]
    assert started == [0.125] * 8


def test_after_a_call_dearer_than_its_reservation_the_others_count_as_much() -> None:
    ledger = Ledger(cap_usd=10.0, call_cost_usd=0.5)
    first, *others = [ledger.start("judge") for _ in range(4)]
    settle(ledger, first, 2.0)
    assert ledger.statistics().reserved_usd == 6.0
    for reserved in others:
        settle(ledger, reserved, 0.5)
    assert ledger.statistics().reserved_usd == 0.0
    assert ledger.start("judge") == 2.0


def test_a_free_call_starts_also_when_the_cap_is_reached() -> None:
    ledger = Ledger(cap_usd=1.0, call_cost_usd=None, already_spent_usd=1.0)
    assert not ledger.may_start("judge")
    assert ledger.may_start("rule", 0.0)


def test_prices_are_kept_apart_by_account() -> None:
    ledger = Ledger(cap_usd=1.0, call_cost_usd=None)
    settle(ledger, ledger.start("judge"), 0.9)
    assert not ledger.may_start("judge")
    settle(ledger, ledger.start("rule"), 0.0, account="rule")
    assert ledger.may_start("rule"), "a free rule need not fit the judge's price"


def test_a_call_that_never_reported_a_cost_counts_towards_the_cap() -> None:
    ledger = Ledger(cap_usd=1.0, call_cost_usd=0.5)
    for _ in range(2):
        settle(ledger, ledger.start("judge"), 0.0, is_told=False, is_uncertain=True)
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
