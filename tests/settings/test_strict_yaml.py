"""YAML as plain data, and nothing more."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest

from rewardflow.errors import InvalidInput
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
