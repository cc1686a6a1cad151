"""Turns the agent's settings into flags of a command.

Always true: every setting has one flag, made from the settings records, so that a new setting needs no line here;
`options_of` returns only flags that the user gave, so that otherwise the file or the default decides.
"""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from rewardflow.errors import InvalidInput
from rewardflow.reward.option_help import option_meanings
from rewardflow.reward.settings import AGENT_NAMES, LIMIT_NAMES, AgentSettings, LimitSettings, check_names
from rewardflow.types import EMPTY

_DEST = "agent_"  # a prefix, because `args.run` is the command's function and `run` is also a setting
_HINTS: Mapping[str, Any] = {**typing.get_type_hints(LimitSettings), **typing.get_type_hints(AgentSettings)}


def add_agent_flags(
    parser: argparse.ArgumentParser, *, without: tuple[str, ...] = (), defaults: Mapping[str, Any] = EMPTY
) -> None:
    """Adds a flag for every setting, except those that the command explains itself.

    `defaults` are those of the command, where they differ from the agent's.
    """
    group = parser.add_argument_group("agent settings", "docs/settings.md says when to change each setting")
    for record in (LimitSettings, AgentSettings):
        for field in dataclasses.fields(record):
            if field.name not in without:
                default = defaults.get(field.name, field.default)
                default = "none" if default in (None, ()) else default
                flag = f"--{field.name.replace('_', '-')}"
                told = f"{option_meanings().get(field.name, '')} ({default})".replace("%", "%%")
                group.add_argument(flag, dest=_DEST + field.name, metavar="X", help=told)
    group.add_argument(
        "--set", dest="settings", action="append", default=[], metavar="NAME=X", help="set a setting by its name"
    )


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings that the user gave, as keywords of `RewardAgent`."""
    given: dict[str, str] = {}
    for setting in args.settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise InvalidInput(f"--set takes NAME=X, got {setting!r}")
        given[name.strip().replace("-", "_")] = text
    check_names(given, (*LIMIT_NAMES, *AGENT_NAMES))
    flags = {name: getattr(args, _DEST + name, None) for name in _HINTS}
    given |= {name: text for name, text in flags.items() if text is not None}
    return {name: parse(name, text) for name, text in given.items()}


def parse(name: str, text: str) -> Any:
    """Parses the text of a setting; the settings record checks the value."""
    hints = typing.get_args(_HINTS[name]) or (_HINTS[name],)
    text = text.strip()
    if type(None) in hints and text.lower() in ("none", "null"):
        return None
    if bool in hints:
        return {"true": True, "false": False}.get(text.lower(), text)
    if name == "endpoints":
        return tuple(part.strip() for part in text.split(",") if part.strip())
    for number in (int, float):
        if number in hints or (number is int and float in hints):
            try:
                return number(text)
            except ValueError:
                continue
    return text
