"""What run files, plans and reward files share: a mapping from a file, and overrides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.settings.loading import parse_override, read_mapping


def test_a_file_with_a_mapping_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("steps: 3\n")
    assert read_mapping(path, what="a file") == {"steps": 3}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "the file must exist"),
        ("[1]", "a plan file must be a mapping, got [1]"),
        ("", "a plan file must be a mapping, got None"),
        ("a: 1\na: 2\n", "the file must be valid YAML: 'a' is given twice (line 2)"),
    ],
)
def test_an_error_about_a_file_starts_with_its_path(text: str | None, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        read_mapping(path, what="a plan file")
    assert str(caught.value) == f"{path}: {problem}"


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("steps=5", "steps", 5),
        (" data.limit = 7 ", "data.limit", 7),
        ("data.limit=", "data.limit", None),
        ("policy.attention=a=b", "policy.attention", "a=b"),
        ("schedules=[one_step]", "schedules", ["one_step"]),
    ],
)
def test_an_override_is_a_dotted_key_and_a_value_in_yaml(text: str, key: str, value: Any) -> None:
    override = parse_override(text)
    assert (override.key, override.value) == (key, value)
    assert override.names == key.split(".")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("steps", "an override must be key=value, got 'steps'"),
        ("=3", "an override must be key=value, got '=3'"),
        ("a..b=1", "the key of an override must have a name between its dots, got a..b"),
        ("a.=1", "the key of an override must have a name between its dots, got a."),
        ("a=[", "the value of the override a must be valid YAML: "),
    ],
)
def test_a_text_that_is_no_override_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_override(text)
    assert str(caught.value).startswith(problem)
