"""A secret value is found in every form that a service may send back, and nothing else changes."""

from __future__ import annotations

import base64
import dataclasses
import enum
import html
import json
import string
import urllib.parse
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from rewardflow.observe.secret_values import REDACTED, SecretValues, parts_of_address, parts_of_value

KEY = "Zx9/q+T\\4'w\"e_r-t&y%41=u"
PLAIN = string.ascii_letters + string.digits
SECRETS = st.text(string.printable.strip(), min_size=16, max_size=60).map(str.strip)

FORMS: dict[str, Callable[[str], str]] = {
    "as it is": lambda key: key,
    "JSON": lambda key: json.dumps(key)[1:-1],
    "JSON in JSON": lambda key: json.dumps(json.dumps(key))[1:-1],
    "JSON with every character escaped": lambda key: "".join(f"\\u{ord(char):04X}" for char in key),
    "JSON as PHP writes it": lambda key: json.dumps(key)[1:-1].replace("/", "\\/"),
    "percent": lambda key: urllib.parse.quote(key, safe=""),
    "percent in lower case": lambda key: "".join(f"%{ord(char):02x}" for char in key),
    "HTML": html.escape,
    "repr": lambda key: repr(key)[1:-1],
    "lines of 5 characters": lambda key: "\n".join(key[at : at + 5] for at in range(0, len(key), 5)),
    "lines in JSON": lambda key: json.dumps("\r\n  ".join(key[at : at + 7] for at in range(0, len(key), 7)))[1:-1],
    "spaced": lambda key: " ".join(key),
    "invisible spaces": lambda key: "\u200b".join(key),
    "invisible spaces in JSON": lambda key: json.dumps("\u200b".join(key))[1:-1],
    "odd spaces in JSON in JSON": lambda key: json.dumps(json.dumps("\u00a0\u2009".join(key)))[1:-1],
    "pieces in a list": lambda key: json.dumps([key[:9], key[9:]]),
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "base64 of a pair": lambda key: base64.b64encode(f"u:{key}".encode()).decode(),
    "base64 within": lambda key: base64.b64encode(f"me:{key}:x".encode()).decode(),
    "base64 for addresses": lambda key: base64.urlsafe_b64encode(f"abc{key}".encode()).decode(),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_value_is_found_in_every_form(form: str) -> None:
    echoed = FORMS[form](KEY)
    shown = SecretValues([KEY]).redact(f"your key is {echoed}, is it not?")
    assert REDACTED in shown
    assert echoed[4:-4] not in shown
    assert shown.startswith("your key is ")
    assert shown.endswith("is it not?")


@given(
    secret=SECRETS,
    form=st.sampled_from(sorted(set(FORMS) - {"pieces in a list"})),
    before=st.text(max_size=20),
    after=st.text(max_size=20),
)
@example(secret="nvapi-0123456789", form="as it is", before="\\", after="")
@example(secret="ab0123456789abcd", form="as it is", before="100%", after="")
@example(secret="000000000000%0\\0", form="JSON", before="", after="")
@example(secret="0123456789%26amp;0", form="as it is", before="", after="")
@example(secret="0123456789\\u002541", form="JSON", before="", after="")
@example(secret='0000%8000000000"', form="HTML", before="", after="")
def test_no_text_around_a_value_hides_it(secret: str, form: str, before: str, after: str) -> None:
    values = SecretValues([secret])
    assume(sum(char.isalnum() for char in secret) >= 8)
    echoed = FORMS[form](secret)
    shown = values.redact(f"{before} {echoed} {after}")
    assert not values.are_in(shown)
    assert echoed not in shown


@given(text=st.text())
def test_text_without_a_value_is_returned_unchanged(text: str) -> None:
    assert SecretValues(["Zq9-unlikely-0123456789"]).redact(text) is text
    assert SecretValues([]).redact(text) is text


@given(secret=st.text(PLAIN, min_size=8, max_size=30), text=st.text(PLAIN + " \n\\%\"',", max_size=200))
def test_redacting_twice_changes_nothing_more(secret: str, text: str) -> None:
    values = SecretValues([secret])
    once = values.redact(f"{text}{secret}{text}")
    assert values.redact(once) == once


def test_a_short_value_is_removed_only_as_a_whole_word_and_a_very_short_one_never() -> None:
    assert SecretValues(["k3y!x"]).redact("k3y!x, (k3y!x) but not k3y!xa") == "[redacted], ([redacted]) but not k3y!xa"
    assert SecretValues(["a", "ab1", "", "EMPTY"]).redact("a ab1 EMPTY") == "a ab1 EMPTY"


def test_numbers_in_a_record_never_change() -> None:
    values = SecretValues(["12345678"])
    record = {"value": 0.12345678, "n": 12345678, "note": "got 12345678"}
    assert values.redact_record(record) == {"value": 0.12345678, "n": 12345678, "note": f"got {REDACTED}"}


def test_a_value_in_pieces_empties_the_list_that_holds_them() -> None:
    values = SecretValues(["abcdefgh-12345678"])
    record = {"parts": ["abcdefgh-", "12345678"], "other": "stays", "deep": [{"x": ("a", "b")}]}
    assert values.are_in_record(record)
    assert values.redact_record(record) == {
        "parts": [REDACTED, REDACTED],
        "other": "stays",
        "deep": [{"x": ("a", "b")}],
    }


@pytest.mark.parametrize("unit", ["\\", "%4", "&#", "&amp;", "a ", "abcdefg", "\\u00", "'", "\n", "aaaaaaaa"])
def test_long_hostile_text_takes_linear_time(unit: str) -> None:
    """With quadratic time, a million characters would take hours, and this test would not end."""
    values = SecretValues(["aaaaaaaaaaaaaaab", "abcdefgh"])
    assert "abcdefgh" not in values.redact(unit * (1_000_000 // len(unit)) + "abcdefgh")


def test_the_parts_of_headers_and_addresses_are_secrets_as_well() -> None:
    basic = base64.b64encode(b"me:open sesame").decode()
    assert "open sesame" in set(parts_of_value(f"Basic {basic}"))
    assert "abcdefgh" in set(parts_of_value("Bearer abcdefgh"))
    assert set(parts_of_address("https://me:p%40ss@host/v1")) == {"me:p%40ss", "me:p@ss", "p@ss"}
    assert not list(parts_of_address("https://host/v1"))


def nested(value: object, depth: int) -> object:
    for _ in range(depth):
        value = {"a": value} if depth % 2 else [value]
    return value


@pytest.mark.parametrize("depth", [1, 60, 64, 65, 66, 70, 101, 500])
def test_no_depth_hides_a_value_in_a_record(depth: int) -> None:
    values = SecretValues([KEY])
    for inner in (KEY, {KEY: 1}, (KEY, 1), {(KEY, 1): 2}, {frozenset({KEY}): 2}):
        assert values.are_in_record(nested(inner, depth))
        assert KEY not in repr(values.redact_record(nested(inner, depth)))


def test_a_record_is_left_alone_if_it_is_deep_and_there_is_nothing_to_hide() -> None:
    record = nested("text", 500)
    assert SecretValues([]).redact_record(record) is record
    assert not SecretValues([]).are_in_record(record)


def test_names_that_become_equal_keep_their_values() -> None:
    record = {KEY: 1.0, f" {KEY}": 2.0, "other": 3.0}
    shown = SecretValues([KEY]).redact_record(record)
    assert list(shown.values()) == [1.0, 2.0, 3.0]
    assert KEY not in repr(shown)


def test_a_value_in_pieces_in_names_empties_the_names() -> None:
    shown = SecretValues(["abcdefgh-12345678"]).redact_record({"abcdefgh-": {"12345678": 0.5}, "z": "x"})
    assert "12345678" not in repr(shown)
    assert 0.5 in shown[REDACTED].values()


@dataclasses.dataclass
class Answer:
    text: str
    key: str = dataclasses.field(default="", repr=False)


class Unreadable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


KEY_OF_ODD = "tulip-garden-one"


@pytest.mark.parametrize(
    "odd",
    [
        *(KEY_OF_ODD.encode(), bytearray(KEY_OF_ODD.encode()), Path(KEY_OF_ODD), ValueError(KEY_OF_ODD)),
        *(Answer(KEY_OF_ODD), Answer("", KEY_OF_ODD), enum.Enum("Named", {"A": KEY_OF_ODD})["A"]),
    ],
    ids=lambda odd: type(odd).__name__,
)
def test_an_object_that_shows_a_value_is_replaced_wherever_a_record_holds_it(odd: object) -> None:
    values = SecretValues([KEY_OF_ODD])
    assert values.are_in_record({"odd": odd})
    assert values.redact_record({"odd": odd, "list": [odd, 1.5]}) == {"odd": REDACTED, "list": [REDACTED, 1.5]}
    if odd.__hash__ is not None:
        assert values.redact_record({odd: 1}) == {REDACTED: 1}


def test_an_object_that_shows_no_value_stays_itself() -> None:
    record = {"odd": Answer("text"), "unreadable": Unreadable(), "number": Decimal(1), "none": None, "bytes": b"\xff"}
    values = SecretValues([KEY_OF_ODD])
    assert not values.are_in_record(record)
    assert list(values.redact_record(record).values()) == list(record.values())
