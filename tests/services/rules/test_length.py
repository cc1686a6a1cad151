"""Overlong responses lose points, in whatever they are measured."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rollouts import rollout

from rewardflow.errors import InvalidInput
from rewardflow.services.rules import Length


@pytest.mark.parametrize(("length", "value"), [(0, 0.0), (60, 0.0), (70, -0.25), (80, -0.5), (100, -1.0), (400, -1.0)])
def test_overlong_responses_are_punished_softly_and_then_fully(length: int, value: float) -> None:
    assert Length(limit=100, buffer=40).compute_score(rollout("x" * length)).value == value


def test_length_is_counted_in_characters_words_or_tokens() -> None:
    asked = rollout("one two three", token_ids=[5, 6, 7, 8], response_mask=[1, 0, 1, 1])
    lengths = [Length(limit=9, buffer=9, unit=unit).compute_score(asked).extras for unit in ("characters", "words")]
    assert lengths == [{"length": 13}, {"length": 3}]
    assert Length(limit=9, buffer=9, unit="tokens").compute_score(asked).extras == {"length": 3}
    unmasked = rollout("one", token_ids=[5, 6])
    assert Length(limit=9, buffer=9, unit="tokens").compute_score(unmasked).extras == {"length": 2}
    with pytest.raises(InvalidInput, match="token_ids"):
        Length(limit=9, buffer=9, unit="tokens").compute_score(rollout("one"))


@given(st.integers(0, 300), st.integers(1, 100), st.integers(0, 100))
def test_the_punishment_never_leaves_its_range_and_grows_with_length(length: int, buffer: int, more: int) -> None:
    rule = Length(limit=100, buffer=buffer, penalty=2.0)
    shorter, longer = (rule.compute_score(rollout("x" * size)).value for size in (length, length + more))
    assert shorter is not None
    assert longer is not None
    assert -2.0 <= longer <= shorter <= 0.0


@pytest.mark.parametrize("fields", [{"limit": 5, "buffer": 6}, {"limit": 5, "buffer": 0}, {"unit": "bytes"}])
def test_settings_that_make_no_sense_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Length(**{"limit": 5, "buffer": 5, **fields})
