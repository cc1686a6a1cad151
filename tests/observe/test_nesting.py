"""Depth is measured without recursion."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.observe.nesting import MAX_DEPTH, is_too_deep, read_json


def nested(depth: int, kind: str = "list") -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind == "list" else {"a": value}
    return value


@pytest.mark.parametrize("kind", ["list", "object"])
@pytest.mark.parametrize("depth", [900, 5_000, 100_000])
def test_any_depth_is_measured(depth: int, kind: str) -> None:
    assert is_too_deep(nested(depth, kind))
    assert is_too_deep({"beside": 1, "deep": [1, nested(depth, kind)]})


@given(depth=st.integers(0, 2 * MAX_DEPTH), kind=st.sampled_from(["list", "object"]))
def test_only_what_is_nested_more_often_is_too_deep(depth: int, kind: str) -> None:
    assert is_too_deep(nested(depth, kind)) == (depth > MAX_DEPTH)


def test_wide_is_not_deep() -> None:
    assert not is_too_deep([[number] for number in range(10_000)])


@pytest.mark.parametrize("text", ["[" * 100_000, b'{"a":' * 100_000, "[1,"])
def test_a_text_that_cannot_be_read_is_one_kind_of_error_however_deep_it_is_nested(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"nested too deep|Expecting value"):
        read_json(text)
    assert read_json('{"a": [1, NaN]}')["a"][0] == 1
