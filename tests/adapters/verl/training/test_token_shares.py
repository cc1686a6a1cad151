"""How much of a step's tokens a mini-batch has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.adapters.verl.training.token_shares import token_share


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=8))
def test_a_token_weighs_the_same_in_every_mini_batch(tokens: list[int]) -> None:
    """verl divides a mini-batch's sum by its own tokens; with the share, every sum is divided by the same number."""
    mean = sum(tokens) / len(tokens)
    weights = [token_share(own, mean=mean) / own for own in tokens]
    assert weights == pytest.approx([1 / mean] * len(tokens))


def test_a_mini_batch_without_tokens_keeps_its_weight() -> None:
    assert token_share(0, mean=3.0) == 1.0
