"""The order of an epoch."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from rewardflow.data.shuffling import epoch_order


@given(size=st.integers(0, 300), seed=st.integers(-5, 10**12), epoch=st.integers(0, 10**6))
def test_an_order_is_a_permutation_sorted_by_the_documented_digest(size: int, seed: int, epoch: int) -> None:
    order = epoch_order(size, seed, epoch)
    assert sorted(order) == list(range(size))
    digests = [hashlib.blake2b(f"{seed}/{epoch}/{i}".encode(), digest_size=8).digest() for i in order]
    assert digests == sorted(digests)


def test_the_order_is_the_same_on_every_machine() -> None:
    assert epoch_order(8, 0, 0) == [0, 4, 2, 3, 7, 6, 5, 1]


def test_epochs_and_seeds_have_their_own_orders() -> None:
    orders = {tuple(epoch_order(30, seed, epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25
