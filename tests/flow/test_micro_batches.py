"""The cut of a mini-batch depends on lengths alone."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from rewardflow.flow.micro_batches import plan_micro_batches, split_by_tokens


@given(st.integers(1, 200), st.integers(0, 10**6), st.integers(1, 10**5))
def test_micro_batches_hold_every_share_and_differ_by_one_at_most(shares: int, tokens: int, most: int) -> None:
    plan = plan_micro_batches(shares, tokens, most)
    assert sum(plan) == shares
    assert max(plan) - min(plan) <= 1
    assert min(plan) >= 1
    assert len(plan) == min(shares, max(1, -(-tokens // most)))


@given(st.lists(st.integers(1, 100), max_size=50), st.integers(1, 200))
def test_neighbours_go_together_as_far_as_they_fit(lengths: list[int], most: int) -> None:
    parts = [lengths[part] for part in split_by_tokens(lengths, most)]
    assert [length for part in parts for length in part] == lengths
    assert all(sum(part) <= most or len(part) == 1 for part in parts)
    for part, following in itertools.pairwise(parts):
        assert sum(part) + following[0] > most
