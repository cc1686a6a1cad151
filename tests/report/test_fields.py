"""Lines that others wrote."""

from __future__ import annotations

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.report.fields import Fields

FIELDS = Fields(
    {
        "n": 3,
        "x": 0.5,
        "none": None,
        "t": "text",
        "inf": float("inf"),
        "flag": True,
        "l": [1, None],
        "o": {"a": 1},
        "lo": [{"b": 2}],
    },
    "file, line 7",
)


def test_what_is_missing_or_not_finite_has_a_default() -> None:
    assert (FIELDS.number("no"), FIELDS.number("none"), FIELDS.number("inf")) == (None, None, None)
    assert (FIELDS.count("no"), FIELDS.text("no"), FIELDS.numbers("no"), FIELDS.inner("no").data) == (0, "", [], {})


def test_what_is_there_is_given() -> None:
    assert (FIELDS.number("x"), FIELDS.count("n"), FIELDS.text("t")) == (0.5, 3, "text")
    assert FIELDS.numbers("l") == [1.0, None]
    assert [inner.count("b") for inner in FIELDS.all_inner("lo")] == [2]
    assert FIELDS.by_name() == {"n": 3.0, "x": 0.5}


@pytest.mark.parametrize(
    ("read", "rule"),
    [
        (lambda: FIELDS.number("t"), "t must be a number, got 'text'"),
        (lambda: FIELDS.number("flag"), "flag must be a number"),
        (lambda: FIELDS.inner("t"), "t must be an object"),
        (lambda: FIELDS.numbers("t"), "t must be a list"),
        (lambda: FIELDS.all_inner("l"), "0 must be an object"),
        (lambda: FIELDS.inner("o").number("a") and FIELDS.inner("l"), "l must be an object"),
    ],
)
def test_what_is_of_the_wrong_kind_is_an_error_with_its_place(read: object, rule: str) -> None:
    assert callable(read)
    with pytest.raises(InvalidInput, match=rule) as raised:
        read()
    assert "file, line 7" in str(raised.value)
