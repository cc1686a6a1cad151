"""Shares of samples, for any lengths and any number of ranks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rewardflow.runtime.on_ray.balance import split_evenly

LOADS = st.lists(st.integers(0, 500), max_size=60)


@given(LOADS, st.integers(1, 9))
def test_everything_is_in_one_share_and_in_order(loads: list[int], num_shares: int) -> None:
    shares = split_evenly(loads, num_shares)
    assert len(shares) == num_shares
    assert sorted(place for share in shares for place in share) == list(range(len(loads)))
    assert all(share == sorted(share) for share in shares)


@given(LOADS, st.integers(1, 9))
def test_no_two_shares_differ_by_more_than_the_longest_sample(loads: list[int], num_shares: int) -> None:
    totals = [sum(loads[place] for place in share) for share in split_evenly(loads, num_shares)]
    assert max(totals) - min(totals) <= max(loads, default=0)


def test_the_longest_goes_first_to_whoever_has_least() -> None:
    assert split_evenly([5, 1, 1, 3, 2], 2) == [[0, 1], [2, 3, 4]]
