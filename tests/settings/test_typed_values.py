"""Plain data into typed records."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from rewardflow.errors import InvalidInput
from rewardflow.settings.typed_values import ValueFitter, at


@dataclass(frozen=True, slots=True)
class Leaf:
    name: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.weight < 0:
            raise InvalidInput(f"weight must not be negative, got {self.weight}")


@dataclass(frozen=True)
class Tree:
    text: str = ""
    whole: int | None = None
    flag: bool = False
    mode: Literal["auto", "off"] = "auto"
    urls: Sequence[str] = ()
    pair: tuple[int, float] = (0, 0.0)
    leaves: tuple[Leaf, ...] = ()
    listed: list[int] = field(default_factory=list)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)
    leaf: Leaf | str | None = None
    place: str | os.PathLike[str] | None = None
    folder: Path | None = None
    then: str | Callable[..., Any] | None = None
    anything: Any = None
    request: Mapping[str, Any] | None = None
    made: int = field(init=False, default=0)


@dataclass(frozen=True)
class Service:
    headers: Mapping[str, str] = field(default_factory=dict)
    api_key_env: str | None = None
    plain: str = ""


def build(**values: Any) -> Tree:
    tree = ValueFitter(Path("/data"), lambda entry: ("reward", entry)).build(Tree, values)
    assert isinstance(tree, Tree)
    return tree


@pytest.mark.parametrize(
    ("name", "value", "fitted"),
    [
        ("text", "a", "a"),
        ("whole", None, None),
        ("whole", 3, 3),
        ("flag", True, True),
        ("mode", "off", "off"),
        ("urls", ["a", "b"], ("a", "b")),
        ("pair", [1, 2], (1, 2.0)),
        ("leaves", [{"name": "x"}, {"name": "y", "weight": 2}], (Leaf("x"), Leaf("y", 2.0))),
        ("listed", [1], [1]),
        ("sampling", {"temperature": 0, "stop": ["a"]}, {"temperature": 0, "stop": ["a"]}),
        ("prices", {"in": 1}, {"in": 1.0}),
        ("leaf", {"name": "x"}, Leaf("x")),
        ("leaf", "by name", "by name"),
        ("place", "corpus", "/data/corpus"),
        ("place", "/corpus", "/corpus"),
        ("folder", "corpus", "/data/corpus"),
        ("then", "judge.py:f", ("reward", "judge.py:f")),
        ("then", {"reward": "gsm8k"}, ("reward", {"reward": "gsm8k"})),
        ("leaf", {"reward": "gsm8k"}, ("reward", {"reward": "gsm8k"})),
        ("sampling", {"reward": "x"}, {"reward": "x"}),
        ("sampling", {"a": {"reward": "x"}}, {"a": {"reward": "x"}}),
        ("request", {"reward": "x"}, {"reward": "x"}),
        ("anything", [1, {"a": 2}], [1, {"a": 2}]),
    ],
)
def test_a_value_takes_the_form_of_its_field(name: str, value: Any, fitted: Any) -> None:
    found = getattr(build(**{name: value}), name)
    assert (type(found), found) == (type(fitted), fitted)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"txt": "a"}, "there is no setting 'txt'; did you mean 'text'?"),
        ({"made": 1}, "there is no setting 'made'"),
        ({1: "a"}, "settings must have names as keys, got 1"),
        ({"text": 1.0}, "text must be text, got 1.0; put it in quotes to make it text"),
        ({"text": datetime.date(2026, 1, 31)}, "text must be text, got datetime.date(2026, 1, 31); put it in quotes"),
        ({"text": None}, "text must be text, got None"),
        ({"whole": 1.5}, "whole must be a whole number or null, got 1.5"),
        ({"whole": True}, "whole must be a whole number or null, got True"),
        ({"flag": 1}, "flag must be true or false, got 1"),
        ({"mode": "on"}, "mode must be one of auto, off, got 'on'"),
        ({"mode": False}, "mode must be one of auto, off, got False"),
        ({"urls": "http://a"}, "urls must be a list, got 'http://a'"),
        ({"urls": ["a", 3]}, "urls[1] must be text, got 3"),
        ({"pair": [1]}, "pair must be a list of 2, got [1]"),
        ({"leaves": [{"name": "x", "weight": "high"}]}, "leaves[0]: weight must be a number, got 'high'"),
        ({"leaves": [{"name": "x", "weigth": 2}]}, "leaves[0]: there is no setting 'weigth'; did you mean 'weight'?"),
        ({"leaves": [{}]}, "leaves[0]: name must be given, got nothing"),
        ({"leaves": [{"name": "x", "weight": -1}]}, "leaves[0]: weight must not be negative, got -1"),
        ({"prices": {"in": "dear"}}, "prices.in must be a number, got 'dear'"),
        ({"sampling": [1]}, "sampling must be a mapping, got [1]"),
        ({"leaf": 3}, "leaf must be a mapping or text or null, got 3; put it in quotes to make it text"),
    ],
)
def test_what_does_not_fit_is_named_with_its_rule(values: dict[Any, Any], problem: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        ValueFitter(Path("/data"), lambda entry: entry).build(Tree, values)
    assert str(raised.value).startswith(problem)


def test_where_is_said_from_outside_in() -> None:
    with pytest.raises(InvalidInput, match=r"^file: entry: the rule$"), at("file"), at("entry"):
        raise InvalidInput("the rule")


@pytest.mark.parametrize(
    "values",
    [
        {"headers": "correct-horse"},
        {"headers": {"x-title": ["correct-horse"]}},
        {"api_key_env": {"value": "correct-horse"}},
        {"api_key_env": ["correct-horse"]},
        {"plain": {"api_key": "correct-horse"}},
        {"plain": [{"api_key": "correct-horse"}]},
    ],
)
def test_what_may_be_a_secret_is_not_shown(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="must be") as caught:
        ValueFitter(Path("/data"), lambda entry: entry).build(Service, values)
    assert "correct-horse" not in str(caught.value)
