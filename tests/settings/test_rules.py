"""Rules of numbers, choices and names."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.settings.rules import at_least, choices_of, closest, did_you_mean, within


@pytest.mark.parametrize("value", [0, 1.0, True, None, "1"])
def test_a_whole_number_below_its_least_or_of_another_type_is_refused(value: Any) -> None:
    at_least("n", 1, 1)
    with pytest.raises(InvalidInput, match=r"n must be a whole number of at least 1, got n="):
        at_least("n", value, 1)


@pytest.mark.parametrize("value", [0.0, 1.1, math.nan, math.inf, True, None, "0.5"])
def test_a_number_outside_its_range_or_of_another_type_is_refused(value: Any) -> None:
    within("x", 1, 0.0, 1.0, low_open=True)
    with pytest.raises(InvalidInput, match=r"x must be a number above 0 and at most 1, got x="):
        within("x", value, 0.0, 1.0, low_open=True)


@pytest.mark.parametrize(
    ("hint", "choices"),
    [
        (Literal["a", "b"], ("a", "b")),
        (Literal["a"] | None, ("a", None)),
        (int | Literal["auto"], ()),
        (int | None, ()),
        (str, ()),
        (tuple[float, float], ()),
    ],
)
def test_choices_are_those_of_a_type_that_takes_nothing_else(hint: Any, choices: tuple[Any, ...]) -> None:
    assert choices_of(hint) == choices


def test_a_misspelt_name_is_answered_with_the_closest_known_one() -> None:
    assert closest("pipelin", ["one_step", "pipeline"]) == "pipeline"
    assert closest("xyz", ["one_step", "pipeline"]) is None
    assert did_you_mean("pipelin", ["one_step", "pipeline"], otherwise="there are two") == "did you mean 'pipeline'?"
    assert did_you_mean("xyz", ["one_step", "pipeline"], otherwise="there are two") == "there are two"
