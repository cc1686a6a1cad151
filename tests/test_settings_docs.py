"""docs/settings.md names every setting with its default, and the keywords for type checkers are the settings.

The checker takes the page's text and returns complaints, so it is also tried on pages that must fail.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import typing
from pathlib import Path
from typing import Any

import pytest

from rewardflow.reward.settings import AgentOptions, AgentSettings, LimitOptions, LimitSettings

PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"
RECORDS: tuple[type[Any], ...] = (LimitSettings, AgentSettings)
ROW = re.compile(r"^\| `(?P<name>\w+)` \| `(?P<default>[^`]+)` \|(?P<rest>.*)\|$", re.MULTILINE)
NUM_TEXTS = 3  # rule, meaning, when to change it


def defaults() -> dict[str, Any]:
    return {field.name: field.default for record in RECORDS for field in dataclasses.fields(record)}


def complaints_about(page: str) -> list[str]:
    rows = list(ROW.finditer(page))
    names = [row["name"] for row in rows]
    known = defaults()
    complaints = [f"{name} is missing" for name in known if name not in names]
    complaints += [f"{name} stands there twice" for name in sorted({name for name in names if names.count(name) > 1})]
    for row in rows:
        name, shown = row["name"], ast.literal_eval(row["default"])
        if name not in known:
            complaints.append(f"there is no setting {name}")
        elif (type(shown), shown) != (type(known[name]), known[name]):
            complaints.append(f"the default of {name} is {known[name]!r}, the page says {shown!r}")
        texts = [text.strip() for text in row["rest"].split(" | ")]
        if len(texts) != NUM_TEXTS or not all(texts):
            complaints.append(f"{name} needs a rule, a meaning and when to change it")
    return complaints


def hints(kind: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


# -- the page and the keywords as they are --


def test_the_page_names_every_setting_with_its_default() -> None:
    complaints = complaints_about(PAGE.read_text("utf-8"))
    assert not complaints, "\n".join(complaints)


def test_the_page_has_the_settings_in_the_order_of_their_records() -> None:
    assert [row["name"] for row in ROW.finditer(PAGE.read_text("utf-8"))] == list(defaults())


def test_limit_options_are_the_fields_of_limit_settings() -> None:
    assert hints(LimitOptions) == hints(LimitSettings)


def test_agent_options_are_the_fields_of_both_records() -> None:
    assert hints(AgentOptions) == hints(LimitSettings) | hints(AgentSettings)


def test_no_option_is_required() -> None:
    assert AgentOptions.__required_keys__ == frozenset()


def test_the_two_records_share_no_name() -> None:
    assert not set(hints(LimitSettings)) & set(hints(AgentSettings))


# -- the checker can fail --


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("| `max_attempts` |", "| max_attempts |", "max_attempts is missing"),
        ("| `max_attempts` |", "| `max_attempt` |", "there is no setting max_attempt"),
        ("| `max_attempts` | `3` |", "| `max_attempts` | `4` |", "the default of max_attempts is 3, the page says 4"),
        (
            "| `max_backoff_s` | `30.0` |",
            "| `max_backoff_s` | `30` |",
            "the default of max_backoff_s is 30.0, the page says 30",
        ),
        ("| `tpm` |", "| `rpm` |", "rpm stands there twice"),
        (" | not empty | ", " | | ", "run needs a rule, a meaning and when to change it"),
    ],
)
def test_a_page_that_is_wrong_is_found(old: str, new: str, complaint: str) -> None:
    page = PAGE.read_text("utf-8")
    assert page.count(old) == 1
    assert complaint in complaints_about(page.replace(old, new))
