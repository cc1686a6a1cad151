"""Words of verl's command line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.adapters.verl.launch.overrides import VerlOverride
from rewardflow.errors import InvalidInput

KEYS = st.from_regex(r"[a-z_]{1,8}(\.[a-z_]{1,8}){0,3}", fullmatch=True)
VALUES = st.from_regex(r"[A-Za-z0-9_/.\[\],'=-]{0,20}", fullmatch=True)


@given(KEYS, VALUES, st.sampled_from(["", "+", "++"]))
def test_a_word_is_written_as_it_was_read(key: str, value: str, mark: str) -> None:
    word = f"{mark}{key}={value}"
    assert str(VerlOverride.parse(word)) == word
    assert VerlOverride.parse(word) == VerlOverride(key, value, mark)


def test_a_key_can_be_taken_away() -> None:
    assert VerlOverride.parse("~trainer.logger") == VerlOverride("trainer.logger", None, "~")


def test_quotes_protect_a_value_and_are_no_part_of_it() -> None:
    assert VerlOverride.parse("a='x y'").text == "x y"


@pytest.mark.parametrize("word", ["trainer.logger", "=3", "", "+"])
def test_what_is_no_setting_is_refused(word: str) -> None:
    with pytest.raises(InvalidInput, match="must read key=value"):
        VerlOverride.parse(word)


def test_a_truth_value_is_one_of_the_known_words() -> None:
    assert VerlOverride.parse("a=True").is_true()
    assert not VerlOverride.parse("a=false").is_true()
    with pytest.raises(InvalidInput, match="must be True or False, got 'maybe'"):
        VerlOverride.parse("a=maybe").is_true()
