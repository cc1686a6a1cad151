"""Weights travel in buckets: each once, in order, and never many at a time."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.runtime.on_ray.weight_buckets import next_bucket

BYTES = 4  # of a number


@given(st.lists(st.integers(1, 9), max_size=12), st.integers(1, 40))
def test_every_weight_travels_once_in_order_and_a_bucket_ends_with_what_fills_it(sizes: list[int], most: int) -> None:
    weights = {f"w{number}": torch.full((size,), float(number)) for number, size in enumerate(sizes)}
    sent, helped = iter(weights.items()), iter(weights.items())
    found: dict[str, torch.Tensor] = {}
    is_last = False
    while not is_last:
        bucket, note = next_bucket(sent, keeps=True, max_bytes=most * BYTES)
        nothing, other = next_bucket(helped, keeps=False, max_bytes=most * BYTES)
        assert (dict(nothing.weights), other.is_empty, other.is_last) == ({}, True, note.is_last)
        *before, _ = [weight.nbytes for weight in bucket.weights.values()] or [0]
        assert sum(before) < most * BYTES
        assert note.is_empty == (not bucket.weights)
        found |= bucket.weights
        is_last = note.is_last
    assert list(found) == list(weights)
    assert all(torch.equal(found[name], weights[name]) for name in weights)


def test_what_has_all_been_sent_is_followed_by_empty_buckets_and_not_sent_again() -> None:
    weights = iter([("w", torch.zeros(2))])
    notes = [next_bucket(weights, keeps=True)[1] for _ in range(3)]
    assert [(note.is_empty, note.is_last) for note in notes] == [(False, True), (True, True), (True, True)]


def test_a_bucket_keeps_what_a_weight_was_when_it_was_sent() -> None:
    weight = torch.zeros(2)
    bucket, _ = next_bucket(iter([("w", weight)]), keeps=True)
    weight.add_(1)
    assert bucket.weights["w"].tolist() == [0, 0]
