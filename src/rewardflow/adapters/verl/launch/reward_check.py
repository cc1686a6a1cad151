"""Checks that the reward that a run names exists, before anything starts.

Always true: the check runs none of the user's code, because that may need what only the cluster has. The agent finds
what only running the code can show, when it opens.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

from rewardflow.adapters.verl.settings import VerlSettings, spec_of
from rewardflow.errors import InvalidInput
from rewardflow.reward.code.source import split_name
from rewardflow.services.reward_file import load_reward_contents
from rewardflow.settings.reward_shape import is_named
from rewardflow.settings.rules import did_you_mean


def check_reward(settings: VerlSettings) -> None:
    """Refuses a missing file, a name that the file does not define, and a service with wrong settings."""
    reward = settings.reward
    if is_named(reward) and not (reward.endswith(".py") or all(reward.rpartition(":"))):
        raise InvalidInput(
            "rewardflow.reward must be a reward file ending in .yaml, 'file.py:name' or 'package.module:name', got "
            f"{reward!r}"
        )
    place, name = split_name(reward) if is_named(reward) else (reward, "")
    is_file = place.endswith((".py", ".yaml", ".yml"))
    if is_file and not os.path.isfile(place):
        raise InvalidInput(f"the reward's file must exist, got {place}")
    if is_file and name:
        _check_defines(Path(place), name)
    spec = spec_of(settings)
    if spec.contents is not None:
        load_reward_contents(spec.contents, folder=spec.folder)


def _check_defines(file: Path, name: str) -> None:
    try:
        module = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise InvalidInput(f"the reward's file must be Python, got {file}: {error}") from None
    names = set(_names(module))
    if name in names or "*" in names:
        return
    hint = did_you_mean(name, names, otherwise="")
    raise InvalidInput(
        f"the reward must be defined in its file, got {file}, which has no {name!r}{'; ' if hint else ''}{hint}"
    )


def _names(tree: ast.AST) -> Iterator[str]:
    """Yields the names that running a module may define: all that code outside functions and classes assigns."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.alias(name=name, asname=other):
                yield other or name.partition(".")[0]
            case _:
                yield from _names(node)
