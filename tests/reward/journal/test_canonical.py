"""Equal values give equal bytes in every process, and an odd object does not hide the rest of a value."""

from __future__ import annotations

import dataclasses
import decimal
import os
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.reward.journal.canonical import OUTSIDE_IDENTITY, canonical, identity_fields

BROKEN = "broken \ud800 surrogate"  # makes the whole value take the slow way


class Client:
    """Has the default repr, with an address."""


class Raises:
    def __repr__(self) -> str:
        raise KeyError("half built")


class BrokenMapping(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("closed")


class Array:
    """An array whose repr leaves items out, as those of numpy and torch do."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def tolist(self) -> list[Any]:
        return list(self.items)

    def __repr__(self) -> str:
        return f"Array([{self.items[0]}, ...])"


class Image:
    """An image as PIL has it: neither its list of items nor its repr tells the pixels."""

    def __init__(self, *pixels: int) -> None:
        self.__array_interface__ = {"shape": (1, len(pixels)), "typestr": "|u1", "data": bytes(pixels), "version": 3}


@dataclasses.dataclass
class Settings:
    model: str
    _key: Any = None


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(values)
def test_equal_values_give_equal_bytes_whatever_the_order_of_keys(value: Any) -> None:
    def turned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: turned(item) for key, item in reversed(value.items())}
        return [turned(item) for item in value] if isinstance(value, list) else value

    assert canonical(turned(value)) == canonical(value)
    assert canonical([turned(value), BROKEN]) == canonical([value, BROKEN])


@given(values, values)
def test_different_values_give_different_bytes(one: Any, other: Any) -> None:
    if repr(one) != repr(other) and one != other:
        assert canonical(one) != canonical(other)
        assert canonical([one, BROKEN]) != canonical([other, BROKEN])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a", "b"}, {"a", "c"}),
        ({1, "1"}, {1, "2"}),
        (frozenset({frozenset({1})}), frozenset({frozenset({2})})),
        ({(1, 2): 3}, {(1, 2): 4}),
        (MappingProxyType({"a": 1}), MappingProxyType({"a": 2})),
        (b"one", b"other"),
        (2**80, 2**81),
        (10**5000, 10**5001),
        ("\ud800", "\ud801"),
        ("\ud800", "\\ud800"),
        (Path("one"), Path("other")),
        (len, max),
        (Client, Settings),
        (re.compile("one"), re.compile("other")),
        (decimal.Decimal("1.0"), decimal.Decimal("1.1")),
        (Settings("one"), Settings("other")),
        (Settings("one", {1}), Settings("one", {2})),
        (Array(1, 2, 3), Array(1, 7, 3)),
        (Image(1, 2, 3), Image(1, 7, 3)),
        (1, True),
        (None, "None"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_odd_values_are_told_apart(one: Any, other: Any) -> None:
    assert canonical(one) == canonical(one)
    assert canonical(one) != canonical(other)
    assert canonical([one, BROKEN]) != canonical([other, BROKEN])


@pytest.mark.parametrize("make", [object, Client, Raises, lambda: lambda: 1, lambda: [Client()]])
def test_what_differs_from_run_to_run_counts_by_its_type(make: Any) -> None:
    kept = make()  # stays alive, so that the second one has another address
    assert canonical(kept) == canonical(make())
    assert canonical([Client()]) != canonical([object()])


def test_one_odd_thing_hides_nothing_else_however_deep() -> None:
    def messages(text: str) -> Any:
        return [{"role": "user", "content": [{"type": "text", "text": text, "client": Client()}]}, Raises(), BROKEN]

    assert canonical(messages("2 + 2")) == canonical(messages("2 + 2"))
    assert canonical(messages("2 + 2")) != canonical(messages("2 + 3"))


def test_a_container_that_raises_counts_by_its_type() -> None:
    assert canonical([MappingProxyType(BrokenMapping()), 1]) == canonical([MappingProxyType(BrokenMapping()), 1])
    assert canonical([MappingProxyType(BrokenMapping()), 1]) != canonical([MappingProxyType(BrokenMapping()), 2])


def test_a_cycle_ends_and_what_is_beside_it_counts() -> None:
    def cycle(number: int) -> list[Any]:
        items: list[Any] = [number, {"also": {number}}]
        items.append(items)
        return items

    assert canonical(cycle(1)) == canonical(cycle(1))
    assert canonical(cycle(1)) != canonical(cycle(2))


def test_a_value_of_any_depth_is_taken() -> None:
    deep: Any = "end"
    for _ in range(10_000):
        deep = [deep]
    assert canonical(deep)


def test_a_path_counts_as_its_text_on_every_system() -> None:
    assert canonical(PurePosixPath("a/b")) == canonical([PurePosixPath("a/b")])[1:-1]
    assert b"Posix" not in canonical(PurePosixPath("a/b"))


def test_the_bytes_are_the_same_in_every_process() -> None:
    code = (
        "from rewardflow.reward.journal.canonical import canonical;"
        "print(canonical([{'b', 'a', 'c', 1, 2.5}, {'y': 1, 'x': 2}, object(), len]).decode())"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(texts) == 1


def test_arrays_of_numpy_count_by_their_items() -> None:
    tenths = numpy.arange(10_000, dtype="float32") / 10
    for items in (numpy.arange(5000), tenths[::2], numpy.array(["a", None], dtype=object)):
        changed = items.copy()
        changed[1] = 7
        assert canonical({"items": items}) == canonical({"items": items.copy()})
        assert canonical({"items": items}) != canonical({"items": changed})


def test_a_field_outside_the_identity_does_not_count_at_any_depth() -> None:
    @dataclasses.dataclass
    class Service:
        model: str
        keep_alive: bool = dataclasses.field(default=True, metadata=OUTSIDE_IDENTITY)

    fast, safe, other = Service("m"), Service("m", keep_alive=False), Service("n")
    assert identity_fields(safe) == {"model": "m"}
    assert canonical([{"a": fast}]) == canonical([{"a": safe}]) != canonical([{"a": other}])
