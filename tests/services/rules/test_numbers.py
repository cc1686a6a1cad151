"""Numbers are read as they are meant, whole or not at all."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardflow.services.rules import read_last_number, read_marked_number, read_number_answer


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("#### 1,200", "1200"),
        ("#### $1,200.50", "1200.50"),
        ("#### -7", "-7"),
        ("#### -$7", "-7"),
        ("#### $-7", "-7"),
        ("#### 35%", "35"),
        ("#### 18.", "18"),
        ("####18", "18"),
        ("#### 5\nNo, wait.\n#### 6", "6"),
        ("#### 5 or ####", "5"),
        ("#### \N{MINUS SIGN}9", "-9"),
    ],
)
def test_strict_reads_the_last_marked_number(written: str, number: str) -> None:
    assert read_marked_number(written) == Decimal(number)


@pytest.mark.parametrize("written", ["", "120", "### 120", "#### about 120", "#### 1.2.3", "#### .,.", "#### ,"])
def test_strict_reads_nothing_without_a_marked_number(written: str) -> None:
    assert read_marked_number(written) is None


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("She pays $1,200.50 in all.", "1200.50"),
        ("That makes 1,00,000 rupees", "100000"),
        ("between 3,4", "4"),
        ("on pages 5-7", "7"),
        ("f(2)-3", "3"),
        ("it falls to -3", "-3"),
        ("a loss of -$4", "-4"),
        ("so it is 35%.", "35"),
        ("half of it: .5", "0.5"),
        ("first 10, then 12", "12"),
        ("12.", "12"),
        ("It is \N{MINUS SIGN}8 degrees", "-8"),
    ],
)
def test_flexible_reads_the_last_number(written: str, number: str) -> None:
    assert read_last_number(written) == Decimal(number)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### 42\n#### ...", 42),
        ("#### 42\n#### none", 42),
        ("#### 1/2", None),
        ("#### 12/5", None),
        ("#### 1 / 2", None),
        ("#### 10^3", None),
        ("#### 3:30", None),
        ("#### 2 * 3", None),
        ("#### 1.2.3", None),
        (r"#### \$42", 42),
        (r"#### -\$42", -42),
        ("#### **42**", 42),
        ("####**$42**", 42),
        ("#### `42`", 42),
        ("#### 42.", 42),
        ("#### 42 / 7 days", None),
        ("#### 1 1/2", None),
        ("#### 1\N{VULGAR FRACTION ONE HALF}", None),
        ("#### 42 apples / week", 42),
        ("#### 2.5e3", 2500),
        ("#### 2.5e3000", None),
        ("#### 1 000 000", 1000000),
        ("#### 1 000 00", 1),
    ],
)
def test_what_stands_after_the_mark_is_read_whole_or_not_at_all(text: str, number: int | None) -> None:
    assert read_marked_number(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so 2.5e3", "2500"),
        ("so 2.5E-1 m", "0.25"),
        ("so 1e3.", "1000"),
        ("so 1 000 000", "1000000"),
        ("so -$1 000 000.50", "-1000000.50"),
        ("so 12\u00a0345 apples", "12345"),
        ("of 10 20", "20"),
        ("of 1000 200", "200"),
        ("of 1 000 00", "0"),
        ("of 1 0000", "0"),
    ],
)
def test_exponents_and_groups_of_three_digits_belong_to_the_last_number(text: str, number: str) -> None:
    assert read_last_number(text) == Decimal(number)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so 1/2", "0.5"),
        ("so 1/2.", "0.5"),
        ("so 3/4 of a cup", "0.75"),
        ("so -3/4", "-0.75"),
        ("so 1 1/2", "1.5"),
        ("so -1 1/2 degrees", "-1.5"),
        ("from 10 20/4", "5"),
        ("so 42 / 7", "6"),
        ("so $1,200/2", "600"),
        ("so 1.5/3", "0.5"),
        ("so 1/2%", "0.5"),
        ("so \N{VULGAR FRACTION ONE HALF}", "0.5"),
        ("so \N{MINUS SIGN}2\N{VULGAR FRACTION THREE QUARTERS}", "-2.75"),
        (r"so \boxed{\frac{1}{2}}", "0.5"),
        (r"so $-3\dfrac{1}{4}$", "-3.25"),
        ("60 km/h", "60"),
        ("a/5", "5"),
        ("3/4 of 12 is 9", "9"),
    ],
)
def test_a_fraction_is_its_value(text: str, number: str) -> None:
    assert read_last_number(text) == Decimal(number)


@pytest.mark.parametrize("text", ["so 1/0", "so 0/0", "so 2 1/0"])
def test_a_fraction_without_a_value_is_no_answer(text: str) -> None:
    assert read_last_number(text) is None


@pytest.mark.parametrize(
    "other",
    [
        *("2024-05-17", "17-05-2024", "17.05.2024", "5/17/2024", "5 / 17 / 2024"),
        *("3:30", "10:30:05", "10:30:05.25", "2024-05-17T10:30:05Z"),
        *("3.11.2", "3.11.2rc1", "192.168.0.1", "v2.0", "V1.2.3"),
    ],
)
def test_dates_times_and_versions_are_passed_over(other: str) -> None:
    assert read_last_number(f"so 42 ({other}).") == 42
    assert read_last_number(f"so 42, -{other}") == 42
    assert read_last_number(f"it was {other}") is None
    assert read_last_number(f"by {other} it was 42") == 42


@pytest.mark.parametrize(("text", "number"), [("1000-50-20", 20), ("at 1:5", 5), ("v2", 2), ("pages 5-7", 7)])
def test_what_only_resembles_a_date_a_time_or_a_version_is_read(text: str, number: int) -> None:
    assert read_last_number(text) == number


@pytest.mark.parametrize(
    ("truth", "number"),
    [("1/2", "0.5"), (" -1 1/2 ", "-1.5"), (r"\frac{3}{4}", "0.75"), ("35%", "35")],
)
def test_a_ground_truth_may_be_a_fraction_or_a_percentage(truth: str, number: str) -> None:
    assert read_number_answer(truth) == Decimal(number)


@pytest.mark.parametrize("truth", ["1/0", "5/17/2024", "2024-05-17", "3:30", "3.11.2", "1/2 or 3"])
def test_a_ground_truth_that_is_more_than_a_number_is_none(truth: str) -> None:
    assert read_number_answer(truth) is None


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(1, 1000))
def test_equal_fractions_are_equal_numbers(above: int, below: int, factor: int) -> None:
    assert read_last_number(f"{above}/{below}") == read_last_number(f"{above * factor}/{below * factor}")


def verl_flexible(text: str) -> str | None:
    """The last number as verl's gsm8k finds it, of a whole response."""
    found = re.findall(r"(\-?[0-9\.\,]+)", text)
    return next((one for one in reversed(found) if one not in ("", ".")), None)


words = st.sampled_from(["so", "apples", "in all =", "which is", "%", "and then", "\n", "x -", "a/b", "("])
plain_numbers = st.integers(-(10**9), 10**9).map(str) | st.decimals(-999, 999, places=2).map(str)
grouped_numbers = st.integers(-(10**9), 10**9).map("{:,}".format)


@given(st.lists(st.tuples(words, plain_numbers | grouped_numbers), max_size=4), words)
def test_in_plain_text_the_number_is_the_one_that_verl_finds(pairs: list[tuple[str, str]], end: str) -> None:
    text = " ".join([*(f"{word} {number}" for word, number in pairs), end])
    found = verl_flexible(text)
    assert read_last_number(text) == (None if found is None else Decimal(found.replace(",", "")))


@given(st.integers(-(10**12), 10**12), st.text(alphabet=st.characters(exclude_characters="#"), max_size=60))
def test_any_whole_number_is_read_back_however_it_is_written(number: int, before: str) -> None:
    for written in (str(number), f"{number:,}", f"{number:,}.00", f"${number:,}", f"{number:,}."):
        assert read_marked_number(f"{before}\n#### {written}") == number
        assert read_last_number(f"{before}\nIt is {written}") == number


@given(st.text())
def test_no_text_makes_the_readers_raise(text: str) -> None:
    for read in (read_marked_number, read_last_number, read_number_answer):
        number = read(text)
        assert number is None or number.is_finite()


@pytest.mark.parametrize(
    "piece", ["1,22", "-", "$", ".1", "#", "#### ", "9", "1,", "####1", "1/", "1 1/", "1.1", "1:30", r"\frac{1"]
)
def test_long_hostile_text_is_read_in_linear_time(piece: str) -> None:
    text = piece * 200_000  # quadratic work here would run into the test's time limit
    read_marked_number(text)
    read_last_number(text)
