"""Plain data arrives as it was sent, and everything else is refused on the side that sends it."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict, namedtuple
from decimal import Decimal
from enum import IntEnum
from typing import Any

import numpy as np
import pytest

from rewardflow.reward.code.processes.plain_data import MAX_VALUES, ArrayData, check_size, decode, encode, to_plain
from rewardflow.reward.code.results import parse_result, parse_results
from rewardflow.types import Reward

Pair = namedtuple("Pair", "score query")


class Grade(IntEnum):
    GOOD = 3


def sent(value: Any) -> Any:
    return decode(encode(to_plain(value)))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -7,
        10**30,
        0.1,
        math.inf,
        "text \ud800 \u2028",
        b"\x00\xff",
        [1, [2.5, "x"]],
        (0.5, None, ("a",)),
        {"score": 1.0, "nested": {"a": [1, (2,)]}},
        {1: "a", (1, 2): "b", None: b"c"},
        {"!tuple": [1]},
        Reward(value=0.5, extras={"k": [1]}, components={"a": 0.5}),
        Reward(kind="timeout", error="slow", extras={}, components={}),
    ],
    ids=repr,
)
def test_plain_values_and_rewards_arrive_as_they_are(value: Any) -> None:
    arrived = sent(value)
    assert arrived == value
    assert type(arrived) is type(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (Grade.GOOD, 3),
        (Decimal("0.25"), 0.25),
        (Pair(0.5, "q"), (0.5, "q")),
        (OrderedDict(score=1.0), {"score": 1.0}),
        ({"score": np.float64(1.0), "counts": np.array([1, 2])}, {"score": 1.0, "counts": [1, 2]}),
    ],
)
def test_numbers_and_containers_of_other_classes_become_plain(value: Any, expected: Any) -> None:
    assert sent(value) == expected


@pytest.mark.parametrize("value", [np.array([0.5]), np.array([0.5, 0.25]), np.array([[0.5]]), {"score": np.ones(2)}])
def test_an_array_means_the_same_verdict_as_without_a_process(value: Any) -> None:
    assert parse_result(sent(value)).value == parse_result(value).value
    assert isinstance(sent(np.ones(2)), ArrayData)
    assert [one.value for one in parse_results(sent(np.array([0.5, 0.25])), 2)] == [0.5, 0.25]


@pytest.mark.parametrize("value", [object(), threading.Lock(), len, {"a": [object()]}])
def test_an_object_is_refused_by_its_type(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot leave the process"):
        to_plain(value)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\x80\x05N.", b"[" * 100_000, b'{"!new":1}', b'{"!reward":{"value":"x"}}', b'{"!dict":[[[],1]]}'],
    ids=["empty", "cut", "pickle", "deep", "tag", "reward", "key"],
)
def test_bytes_that_are_not_plain_data_are_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="it is not plain data"):
        decode(body)


@pytest.mark.parametrize("unit", [b"{}", b"[]", b"1", b'""', b'{"a":1}', b'{"!tuple":[]}', b"null"])
def test_a_message_of_too_many_values_is_refused_before_it_is_decoded(unit: bytes) -> None:
    body = b"[" + b",".join([unit] * MAX_VALUES) + b"]"
    with pytest.raises(ValueError, match=f"at most {MAX_VALUES} values"):
        decode(body)
    assert len(decode(b"[" + b",".join([unit] * (MAX_VALUES // 5)) + b"]")) == MAX_VALUES // 5


@pytest.mark.parametrize("text", ["a,[{:", 'say "no", \\ {[,', "\n,\n"])
def test_a_long_text_is_one_value_whatever_it_holds(text: str) -> None:
    value = {"score": 1.0, "note": text * MAX_VALUES}
    assert decode(encode(to_plain(value))) == value


def test_the_limit_of_values_raises_the_error_of_the_side_that_checks() -> None:
    with pytest.raises(TypeError, match=f"at most {MAX_VALUES} values"):
        check_size(encode([0] * (MAX_VALUES + 1)), TypeError)
