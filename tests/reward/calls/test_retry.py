"""Waiting is jittered and bounded; asking again is rationed."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from rewardflow.reward.calls.retry import Backoff, RetryBudget


@given(st.integers(1, 100), st.floats(0.01, 10), st.floats(0.01, 100), st.integers())
def test_a_delay_lies_between_nothing_and_the_doubling_ceiling(
    failures: int, first_s: float, longest_s: float, seed: int
) -> None:
    delay_s = Backoff(first_s, longest_s, random.Random(seed)).delay_s(failures)
    assert 0.0 <= delay_s <= min(longest_s, first_s * 2.0 ** min(failures - 1, 30))


def test_full_jitter_spreads_retries_over_the_whole_range() -> None:
    backoff = Backoff(1.0, 60.0, random.Random(0))
    delays = [backoff.delay_s(4) for _ in range(1000)]
    assert min(delays) < 0.5
    assert max(delays) > 7.5


def test_retry_after_is_never_undercut_and_still_spread() -> None:
    backoff = Backoff(1.0, 60.0, random.Random(0))
    delays = [backoff.delay_s(3, retry_after_s=7.0) for _ in range(100)]
    assert all(7.0 <= delay_s <= 8.0 for delay_s in delays)
    assert len(set(delays)) > 50


def test_a_budget_lets_through_its_share_of_the_first_attempts() -> None:
    budget = RetryBudget(0.2)
    while budget.spend():
        pass
    for _ in range(100):
        budget.earn()
    granted = sum(budget.spend() for _ in range(100))
    assert granted in (19, 20)


def test_a_budget_of_nothing_allows_nothing() -> None:
    assert not RetryBudget(0.0).spend()
