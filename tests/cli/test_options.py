"""The agent's settings as flags."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from rewardflow.cli.options import add_agent_flags, options_of
from rewardflow.errors import InvalidInput
from rewardflow.reward.settings import AGENT_NAMES, LIMIT_NAMES, split_options


def options(*arguments: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_agent_flags(parser)
    return options_of(parser.parse_args(arguments))


def test_every_setting_has_a_flag() -> None:
    values = {"workers": "process", "reuse": "off", "store": "hash", "endpoints": "a,b", "replay_failures": "false"}
    values["max_refused"] = "0.2"
    for name in (*LIMIT_NAMES, *AGENT_NAMES):
        given = options(f"--{name.replace('_', '-')}", values.get(name, "1"))
        assert list(given) == [name]
        split_options(given)


def test_what_is_not_given_is_not_there() -> None:
    assert options() == {}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max_concurrency=256", 256),
        ("max_concurrency=auto", "auto"),
        ("max-concurrency=8", 8),
        ("rpm=none", None),
        ("rpm=0.5", 0.5),
        ("timeout_s=1e1", 10.0),
        ("timeout_s=None", None),
        ("endpoints=eu, us", ("eu", "us")),
        ("run=1", "1"),
        ("run=none", "none"),
        ("journal=none", None),
        ("journal=a=b.db", "a=b.db"),
        ("max_attempts=two", "two"),
    ],
)
def test_a_text_becomes_what_the_setting_is(setting: str, value: Any) -> None:
    (found,) = options("--set", setting).values()
    assert (type(found), found) == (type(value), value)


def test_a_flag_goes_before_set() -> None:
    assert options("--rpm", "3", "--set", "rpm=4", "--set", "tpm=5") == {"rpm": 3, "tpm": 5}


@pytest.mark.parametrize(
    ("setting", "problem"),
    [("max_concurency=3", "did you mean 'max_concurrency'"), ("rpm", "--set takes NAME=X, got 'rpm'")],
)
def test_a_setting_that_is_none_is_refused(setting: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        options("--set", setting)
