"""YAML as plain data, and nothing more."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.observe.redact import hide_secrets
from rewardflow.settings.strict_yaml import read_yaml


def read(tmp_path: Path, text: str | bytes) -> Any:
    path = tmp_path / "x.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_yaml(path)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 0.001), ("1e3", 1000.0), ("-2.5E+2", -250.0), ("1.5", 1.5), ("12", 12), ("e3", "e3"), ("1e3x", "1e3x")],
)
def test_a_number_with_an_exponent_is_a_number(text: str, value: Any, tmp_path: Path) -> None:
    found = read(tmp_path, f"x: {text}")["x"]
    assert (type(found), found) == (type(value), value)


def test_anchors_and_merges_work(tmp_path: Path) -> None:
    text = "base: &b {model: m, version: a}\nother: {<<: *b, version: b}"
    assert read(tmp_path, text)["other"] == {"model": "m", "version": "b"}


@pytest.mark.parametrize("text", ["1:30", "12:30:45", "-1:30", "1:30.5", "190:20:30", "0:0", "1" + ":59" * 400 + ".5"])
def test_a_number_to_base_60_is_a_text(text: str, tmp_path: Path) -> None:
    assert read(tmp_path, f"x: {text}") == {"x": text}


@pytest.mark.parametrize(
    "value",
    ["!!float " + "1:" * 400 + "0", '!!int ""', '!!float ""', "!!bool maybe", "!!timestamp x", "0b_", "2001-13-45"],
)
def test_a_value_that_does_not_fit_its_type_is_refused_with_its_line(value: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"a value cannot be read \(\w+\) \(line 2\)"):
        read(tmp_path, f"a: 1\nx: {value}")


@pytest.mark.parametrize(
    "text",
    [
        *('a: "\\UFFFFFFFF"', 'a: "\\U00110000"', f"%YAML {'9' * 5000}.1\n---\na: 1", "a: !!map [b]", "a: !!map x"),
        *("a: !!set [b]", "a: !!omap x", "a: !!pairs [b]", "a: !!seq {b: 1}", "a: !!str [b]", "<<: 1", "a: !!int [1]"),
    ],
)
def test_whatever_escapes_from_the_parser_is_an_error_of_the_file(text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="valid YAML"):
        read(tmp_path, text)


def nine_levels(item: str, first: str) -> str:
    """Each level repeats the one before nine times."""
    lines = [f"l0: &l0 {first}"]
    for level in range(1, 10):
        repeated = ", ".join([f"*l{level - 1}"] * 9)
        lines.append(f"l{level}: &l{level} " + item.replace("@", repeated))
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        nine_levels("[@]", "[a]"),
        nine_levels("{<<: [@]}", "{a: 1}"),
        f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 20)}]",
    ],
)
def test_aliases_that_multiply_are_refused_before_anything_is_built(text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="aliases must repeat at most 1,000,000 characters in all"):
        read(tmp_path, text)


@pytest.mark.parametrize("text", ["a: &a [*a]", "a: &a {b: *a}", "a: &a {b: [1, {c: *a}]}", "&a {<<: *a}"])
def test_a_value_that_contains_itself_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="must not contain an alias of itself"):
        read(tmp_path, text)


CHAIN = "\n".join(
    f"l{level}: &l{level} {'[' * 40}{f'*l{level - 1}' if level else 'x'}{']' * 40}" for level in range(40)
)


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 5000, "x: " + "[" * 200 + "]" * 200, "- " * 5000, CHAIN])
def test_deep_nesting_is_refused_by_name_of_the_rule(text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"values must be nested at most 100 levels deep \(line \d+\)"):
        read(tmp_path, text)


def test_nesting_and_repeating_within_the_bounds_are_read(tmp_path: Path) -> None:
    assert read(tmp_path, "[" * 99 + "1" + "]" * 99)
    shared = "base: &b {model: m, urls: [u, v]}\nall: [" + ", ".join(["*b"] * 1000) + "]"
    assert read(tmp_path, shared)["all"][999] == {"model": "m", "urls": ["u", "v"]}
    assert read(tmp_path, "- " + "x" * 3_000_000) == ["x" * 3_000_000]


def test_nothing_is_taken_from_the_environment(tmp_path: Path) -> None:
    assert read(tmp_path, "key: ${HOME}") == {"key": "${HOME}"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("model: a\nmodel: b", r"'model' is given twice \(line 2\)"),
        ("a: {b: 1, b: 2}", "'b' is given twice"),
        ("a: !!python/object/apply:os.system [true]", "could not determine a constructor"),
        ("a: !custom x", "could not determine a constructor"),
        ("a: [", r"\(line 1\)"),
        ("a: 1\n---\nb: 2", "another document"),
        ("a: \x00", "valid YAML"),
        ("? [1, 2]\n: x", "a key must be a name"),
        (b"\xff\xfe", "readable text in UTF-8"),
    ],
)
def test_what_is_not_plain_data_is_refused(text: str | bytes, problem: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=problem):
        read(tmp_path, text)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="the file must exist"):
        read_yaml(tmp_path / "x.yaml")


@pytest.mark.parametrize(
    "line",
    [
        "api_key: *sk-correct-horse",
        "headers: {Authorization: *sk-correct-horse}",
        "api_key: !sk-correct-horse x",
        "api_key: !!int sk-correct-horse",
        "api_key: [sk-correct-horse",
        'api_key: "sk-correct-horse',
        'api_key: "sk-correct-horse\\q"',
        "api_key: sk-correct-horse: x",
    ],
)
def test_no_error_shows_what_may_be_a_key(line: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="valid YAML") as caught:
        read(tmp_path, f"model: m\n{line}")
    assert "correct-horse" not in "".join(traceback.format_exception(caught.value))


def test_what_stands_under_a_secret_name_is_known_to_the_redactor_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("reward_kwargs:\n  clients:\n    - {name: peony, api_key: peony-garden-key}\n")
    read_yaml(path)
    assert hide_secrets("peony sent peony-garden-key") == "peony sent [redacted]"
